package widening

import (
	"strings"
	"unicode"

	"github.com/scopefs/scopefs/scope/excess"
)

// The names that there may be of each kind.
var (
	serverNames  = named(letters+digits, letters+digits+"-.", "_")
	ids          = named("abcdefghijklmnopqrstuvwxyz"+digits, "abcdefghijklmnopqrstuvwxyz-"+digits, "")
	contextNames = named(letters, letters+digits+"_-", "")
	skillNames   = excess.Grammar{Next: func(_ int, r rune) int { return printable(r, "/*:") }, Ends: ended}
	toolNames    = excess.Grammar{Next: func(_ int, r rune) int { return printable(r, ":*") }, Ends: ended}
	serverTools  = excess.Grammar{Next: func(_ int, r rune) int { return printable(r, "*") }, Ends: ended}
)

const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits  = "0123456789"
)

func ended(state int) bool { return state == 1 }

func printable(r rune, not string) int {
	if !unicode.IsPrint(r) || unicode.IsSpace(r) || strings.ContainsRune(not, r) {
		return -1
	}
	return 1
}

// named is a grammar of names that begin with some runes and go on with others. One of between is between two of those.
func named(first, rest, between string) excess.Grammar {
	return excess.Grammar{Ends: ended, Next: func(state int, r rune) int {
		switch {
		case state == 0 && strings.ContainsRune(first, r), state > 0 && strings.ContainsRune(rest, r):
			return 1
		case state == 1 && strings.ContainsRune(between, r):
			return 2
		}
		return -1
	}}
}
