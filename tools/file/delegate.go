package file

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file/message"
)

// Call performs the operation of a file tool for another tool: read_file, write_file,
// delete_file, list_dir or grep. args and out have the JSON of its arguments and result.
// The door decides about the other tool, by its own name.
func (f *Files) Call(ctx context.Context, env tools.Env, op string, args, out any) error {
	switch op {
	case "read_file":
		return convey[ReadArgs, ReadResult](ctx, f, env, operation{op, true}, args, out)
	case "write_file":
		return convey[WriteArgs, WriteResult](ctx, f, env, operation{op, false}, args, out)
	case "delete_file":
		return convey[deleteFileArgs, message.DeleteResult](ctx, f, env, operation{op, false}, args, out)
	case "list_dir":
		return convey[ListArgs, ListResult](ctx, f, env, operation{op, true}, args, out)
	case "grep":
		return convey[GrepArgs, GrepResult](ctx, f, env, operation{op, true}, args, out)
	}
	return fmt.Errorf("file worker: %q is not for other tools", op)
}

func convey[In, Out any](ctx context.Context, f *Files, env tools.Env, op operation, args, out any) error {
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
	result, err := do[In, Out](ctx, f, env.Call, op, in)
	if err != nil || out == nil {
		return err
	}
	if text, err = json.Marshal(result); err != nil {
		return err
	}
	return json.Unmarshal(text, out)
}
