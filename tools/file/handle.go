package file

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools"
)

// handler does one operation in the worker.
type handler func(context.Context, *tree, *asked) (result any, blob []byte, err error)

// handlers are the operations, by the names of their tools.
func handlers(op string) handler {
	switch op {
	case "read_file":
		return handlerOf((*tree).read)
	case "write_file":
		return handlerOf((*tree).write)
	case "edit_file":
		return handlerOf((*tree).edit)
	case "list_dir":
		return handlerOf((*tree).list)
	case "stat":
		return handlerOf((*tree).stat)
	case "glob":
		return handlerOf((*tree).glob)
	case "grep":
		return handlerOf((*tree).grep)
	case "make_dir":
		return handlerOf((*tree).makeDir)
	case "move":
		return handlerOf((*tree).move)
	case "copy":
		return handlerOf((*tree).copy)
	case "delete_file":
		return handlerOf((*tree).deleteFile)
	case "delete":
		return handlerOf((*tree).delete)
	case opSweep:
		return handlerOf((*tree).sweep)
	case opHash:
		return handlerOf((*tree).hash)
	}
	return nil
}

// handlerOf makes a handler of a method. ESTALE says that the name has become
// another's between two steps of the kernel's: the second try meets that one.
func handlerOf[In, Out any](f func(*tree, context.Context, In) (Out, error)) handler {
	return func(ctx context.Context, t *tree, r *asked) (any, []byte, error) {
		var in In
		err := strict(r.Args, &in)
		if c, ok := any(&in).(carrier); ok && err == nil {
			err = c.attach(r.blob)
		}
		if err != nil {
			return nil, nil, tools.Errorf(tools.Invalid, "arguments: %v", err)
		}
		defer t.abandon()
		out, err := f(t, ctx, in)
		if stale(err) {
			out, err = f(t, ctx, in)
		}
		if err != nil {
			return nil, nil, err
		}
		if err := t.settle(0); err != nil {
			return nil, nil, unsettled(err)
		}
		var blob []byte
		if c, ok := any(&out).(carrier); ok {
			blob = c.detach()
		}
		return out, blob, nil
	}
}

func stale(err error) bool { return errors.Is(err, unix.ESTALE) }

func handle(ctx context.Context, root string, r *asked) (any, []byte, error) {
	h := handlers(r.Op)
	if h == nil {
		return nil, nil, tools.Errorf(tools.Invalid, "unknown operation %q", r.Op)
	}
	t := &tree{root: root, quick: r.Quick, temp: cmp.Or(r.Temp, rand.Text()), approved: r.Approved}
	defer t.letGo()
	return h(ctx, t, r)
}
