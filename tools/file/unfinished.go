package file

import (
	"crypto/rand"
	"encoding/json"

	"github.com/scopefs/scopefs/tools/file/message"
)

// Unfinished records the calls that may leave a temporary file when their worker is
// killed. The file's name holds the call's token, which is random.
type Unfinished interface {
	Begin(token, path string)
	End(token string, clean bool)
	// Left calls clean for each call that may have left a file, and forgets the call when
	// clean returns true.
	Left(clean func(token, path string) bool)
}

// A leaver is the arguments of an operation that creates temporary files: beside the path
// or, if that is a directory, anywhere below it.
type leaver interface {
	leaves() (path string, makes bool)
}

func (a WriteArgs) leaves() (string, bool) { return a.Path, a.Mode != message.ModeAppend }

func (a EditArgs) leaves() (string, bool) { return a.Path, !a.DryRun }

func (a copyArgs) leaves() (string, bool) { return a.To, true }

// note records the begin of a call in Unfinished. The caller calls end when the worker has replied or died.
func (f *Files) note(in any) (token string, end func(answered bool)) {
	l, ok := in.(leaver)
	if !ok {
		return "", func(bool) {}
	}
	path, makes := l.leaves()
	if !makes {
		return "", func(bool) {}
	}
	token = rand.Text()
	if f.Unfinished == nil {
		return token, func(bool) {}
	}
	f.Unfinished.Begin(token, path)
	return token, func(answered bool) { f.Unfinished.End(token, answered) }
}

// sweep removes the temporary files of killed calls, in a new worker.
func (f *Files) sweep(send func(message.Request) error) {
	if f.Unfinished == nil {
		return
	}
	f.Unfinished.Left(func(token, path string) bool {
		args, err := json.Marshal(message.SweepArgs{Path: path, Token: token})
		if err == nil {
			err = send(message.Request{Op: message.OpSweep, Args: args})
		}
		return err == nil // it replied: a file that it could not remove stays
	})
}
