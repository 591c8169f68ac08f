package printable

import "strings"

// Command returns a line that a shell of POSIX reads as these words; "" if the line would not print as it is, for what an operator
// copies must be what the program means.
func Command(words ...string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = quote(word)
	}
	line := strings.Join(quoted, " ")
	if Text(line) != line {
		return ""
	}
	return line
}

func quote(word string) string {
	special := func(r rune) bool {
		return ('a' > r || r > 'z') && ('A' > r || r > 'Z') && ('0' > r || r > '9') && !strings.ContainsRune("./_:@%+=,-", r)
	}
	if word != "" && word[0] != '=' && !strings.ContainsFunc(word, special) { // zsh replaces =NAME
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
