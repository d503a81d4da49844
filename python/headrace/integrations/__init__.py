# SPDX-License-Identifier: Apache-2.0
"""headrace underneath other libraries:

headrace.integrations.deepspeed. Importing this package imports none of them.
"""
