#!/usr/bin/env bash
# Finds words in comments and pages that do not name the thing or the person they stand for. docs/glossary.md has the project's terms.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly words='whom|whoever|somebody|everybody|anybody|whatever|heed(?:s|ed|ing)?|(?:is|are|was|were) told|tells? of|told of|so many|be meant|lets? by(?= [a-z])'
readonly comments="^\\s*//(?!\\s*SAFETY)(?!.*;\\s*$).*\\b(?:$words)\\b" prose="^(?! {4}).*\\b(?:$words)\\b"

# Names that name no thing: words within the names of functions and constants, and whole names of types.
readonly parts='who|whom|whoever|told|tells?|what|whatever|lets?|nobody|somebody|everybody|anybody|everyone|something|anything|heeds?|wish|milestones?'
readonly types='told|said|asked|did|came|wish|what|when|wrong|given|looks|otherwise|somewhere|nobody|milestone'
readonly item='^\s*(?:pub(?:\([a-z: ]+\))? )?(?:(?:async|const|unsafe) )*'
readonly names="$item(?:fn|const|static) (?:\\w*_)?(?:$parts)(?:_\\w*)?(?!\\w)|$item(?:struct|enum|trait|type|union) (?:$types)(?!\\w)"

# files PATTERN: files of the project, without those that git ignores. The changelog is a record of what was said.
files() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -z --cached --others --exclude-standard -- "$1"
    else
        find . -path ./target -prune -o -name "$1" -print0
    fi | grep -zv '^\(\./\)\?CHANGELOG\.md$' | while IFS= read -r -d '' file; do
        # git also lists files that are deleted and not committed yet.
        [ ! -e "$file" ] || printf '%s\0' "$file"
    done
}

# search PATTERN FILES: prints the lines. grep's answer is 1 if there is none; anything above is an error.
search() {
    local code=0
    files "$2" | xargs -0 sh -c 'grep -nPi -- "$0" "$@" || [ $? = 1 ]' "$1" || code=$?
    [ "$code" = 0 ] || {
        echo "words: the search failed" >&2
        exit 2
    }
}

found=$(search "$comments" '*.rs' && search "$prose" '*.md')
[ -z "$found" ] || {
    printf 'words: name the thing or the person instead (docs/glossary.md):\n%s\n' "$found" >&2
    exit 1
}

found=$(search "$names" '*.rs')
[ -z "$found" ] || {
    printf 'words: give these items nouns of the thing, verbs of the field, and tests a condition and a result:\n%s\n' "$found" >&2
    exit 1
}
