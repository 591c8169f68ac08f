// Package nearest finds the name that a mistyped word means.
package nearest

import (
	"slices"
	"strings"
)

// Of returns the name that a caller most likely meant by word, or "". The name
// differs in at most a third of its characters, or has word as one of its parts.
func Of(word string, names []string) string {
	const maxWord = 64 // the work is the product of the lengths
	if word == "" || len(word) > maxWord {
		return ""
	}
	word = strings.ToLower(word)
	best, least := "", maxWord
	for _, name := range names {
		if len(name) > maxWord {
			continue
		}
		lower := strings.ToLower(name)
		d := distance(word, lower)
		if d > max(len(word), len(lower))/3 {
			if len(word) < 3 || !hasPart(lower, word) && !hasPart(word, lower) {
				continue
			}
			d = maxWord/2 + d/2 // after all that differ less
		}
		if d < least {
			best, least = name, d
		}
	}
	return best
}

// hasPart reports whether part stands in name between separators.
func hasPart(name, part string) bool {
	return slices.Contains(strings.FieldsFunc(name, func(r rune) bool { return strings.ContainsRune("_:-.", r) }), part)
}

// distance counts the characters to add, drop, change or swap with the next one to
// make one word another (optimal string alignment).
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	before, last, row := make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range last {
		last[j] = j
	}
	for i := range x {
		row[0] = i + 1
		for j := range y {
			cost := 1
			if x[i] == y[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && x[i] == y[j-1] && x[i-1] == y[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(y)]
}
