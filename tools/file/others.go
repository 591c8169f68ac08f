package file

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/scopefs/scopefs/tools"
)

// Call does for another tool what one of ours does: read_file, write_file,
// delete_file, list_dir or grep, with arguments and results as JSON has them. The
// door decides about the other tool, by its own name, not about ours.
func (w *Worker) Call(ctx context.Context, env tools.Env, op string, args, out any) error {
	switch op {
	case "read_file":
		return convey[readArgs, readResult](ctx, w, env, operation{op, true}, args, out)
	case "write_file":
		return convey[writeArgs, writeResult](ctx, w, env, operation{op, false}, args, out)
	case "delete_file":
		return convey[deleteFileArgs, deleteResult](ctx, w, env, operation{op, false}, args, out)
	case "list_dir":
		return convey[listArgs, listResult](ctx, w, env, operation{op, true}, args, out)
	case "grep":
		return convey[grepArgs, grepResult](ctx, w, env, operation{op, true}, args, out)
	}
	return fmt.Errorf("file worker: %q is not for other tools", op)
}

func convey[In, Out any](ctx context.Context, w *Worker, env tools.Env, op operation, args, out any) error {
	text, err := json.Marshal(args)
	if err != nil {
		return err
	}
	var in In
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return fmt.Errorf("%s: %w", op.name, err)
	}
	result, err := do[In, Out](ctx, w, env.Call, op, in)
	if err != nil || out == nil {
		return err
	}
	if text, err = json.Marshal(result); err != nil {
		return err
	}
	return json.Unmarshal(text, out)
}
