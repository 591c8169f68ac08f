package worker

import (
	"errors"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file/message"
)

// knownCodes are the codes that a worker may reply with.
var knownCodes = map[message.Code]bool{
	message.OutsideScope: true, message.Denied: true, message.NotFound: true, message.Conflict: true,
	message.TooLarge: true, message.Unavailable: true, message.Invalid: true, message.Internal: true,
}

// trusted returns an error of the worker with the fields that the daemon accepts, or
// an error that ends the worker.
func trusted(e *message.Error) error {
	const longest = 8 << 10 // bytes of each text
	if !knownCodes[e.Code] || len(e.Message) > longest || len(e.Path) > longest || len(e.Hint) > longest {
		return errors.New("file worker: not an error that it may give")
	}
	return &tools.Error{Code: tools.Code(e.Code), Message: e.Message, Path: e.Path, Hint: e.Hint}
}
