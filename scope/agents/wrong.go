package agents

import (
	"cmp"
	"fmt"

	"github.com/scopefs/scopefs/internal/fields"
)

// removed adds to each error that the name existed before.
func removed(wrong fields.Problems) fields.Problems {
	all := make(fields.Problems, len(wrong))
	for i, err := range wrong {
		at := err.(*fields.LineError)
		all[i] = &fields.LineError{Line: at.Line, Err: fmt.Errorf("%w; it was there once, and grants nothing now", at.Err)}
	}
	return all
}

func byLine(a, b error) int {
	x, _ := a.(*fields.FileError)
	y, _ := b.(*fields.FileError)
	if x == nil || y == nil {
		return 0
	}
	return cmp.Compare(x.Line, y.Line)
}
