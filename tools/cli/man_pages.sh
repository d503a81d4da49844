#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# man_pages.sh HELP2MAN PROGRAM FOLDER: a page for the program and for each of its commands, from what --help says.
set -eu
help2man=$1 program=$2 folder=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"

# The commands below one, or below the program. Two are written in Python, which may not be here.
commands_of() {
  "$program" "$@" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z]*\) .*/\1/p' | grep -vx -e demo -e checkpoint || true
}

# help2man names a page after the file that it runs. It wants an option and what it does on one line, and examples as a
# shell shows them.
page() {
  name=$(echo "headrace $*" | sed 's/ *$//;s/ /-/g')
  cat >"$work/$name" <<END
#!/bin/sh
"$program" $* "\$@" | sed -e '/^Examples:/,/^\$/s/^  headrace/  \$ headrace/' -e '/^  [-A-Z]/{N;s/\n  */   /;:a;N;s/\n        / /;ta;P;D}'
END
  chmod +x "$work/$name"
  about=$("$program" "$@" --help | sed -n '1,/\.$/p' | tr '\n' ' ' | sed 's/\. .*//;s/\. *$//')
  "$help2man" --no-info --section=1 --name="$about" --version-string="$version" \
    --manual="headrace" --source="headrace $version" --include="$work/see" --output="$folder/$name.1" "$work/$name"
}

version=$("$program" --version | sed 's/.* //')
all=headrace
for command in $(commands_of); do
  all="$all $command"
  for below in $(commands_of "$command"); do all="$all $command:$below"; done
done
{
  echo '[see also]'
  for one in $all; do
    case $one in headrace) echo "headrace(1)" ;; *) echo "headrace-$(echo "$one" | tr : -)(1)" ;; esac
  done | paste -sd, | sed 's/,/, /g'
} >"$work/see"
for one in $all; do
  # shellcheck disable=SC2046  # a command and the one below it are two words
  case $one in headrace) page ;; *) page $(echo "$one" | tr : ' ') ;; esac
done
