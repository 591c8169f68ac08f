package engine

import (
	"strings"
	"time"
)

// columnValue returns a value that the driver read.
func columnValue(x any) Value {
	switch x := x.(type) {
	case string:
		return Value{V: strings.ToValidUTF8(x, "\uFFFD")}
	case time.Time: // of a column declared DATE, DATETIME or TIMESTAMP, which no statement here makes
		return Value{V: x.Format(time.RFC3339Nano)}
	case bool:
		if x {
			return Value{V: int64(1)}
		}
		return Value{V: int64(0)}
	}
	return Value{V: x}
}
