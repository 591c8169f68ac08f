package tree

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/tools/file/message"
)

// handler performs one operation in the worker.
type handler func(context.Context, *tree, *message.Request) (message.Reply, error)

// handlers returns the handler of an operation by the name of its tool. It returns nil
// for an unknown name.
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
	case message.OpTake:
		return handlerOf((*tree).take)
	case message.OpSweep:
		return handlerOf((*tree).sweep)
	case message.OpPreview:
		return handlerOf((*tree).preview)
	case message.OpHash:
		return handlerOf((*tree).hash)
	}
	return nil
}

// handlerOf returns the handler for a method. After ESTALE it calls the method once
// more: the name was replaced between lookup and open, and now names the new object.
func handlerOf[In, Out any](f func(*tree, context.Context, In) (Out, error)) handler {
	return func(ctx context.Context, t *tree, r *message.Request) (reply message.Reply, err error) {
		var in In
		if err = peer.Decode(r.Args, &in); err == nil {
			err = message.Attach(&in, r.Blob)
		}
		if err != nil {
			return reply, message.Errorf(message.Invalid, "arguments: %v", err)
		}
		defer t.abandon()
		out, err := f(t, ctx, in)
		if stale(err) {
			out, err = f(t, ctx, in)
		}
		if err != nil {
			return reply, err
		}
		if err := t.settle(0); err != nil {
			return reply, unsettled(err)
		}
		reply.Blob = message.Detach(&out)
		reply.Result, err = json.Marshal(out)
		return reply, err
	}
}

func stale(err error) bool { return errors.Is(err, unix.ESTALE) }

// Below returns the handler for the files below a directory.
func Below(root string) Handler { return In(message.Dirs{Own: root}) }

// In returns the handler for the files in directories.
func In(dirs message.Dirs) Handler {
	return func(ctx context.Context, r *message.Request) (message.Reply, error) {
		h := handlers(r.Op)
		if h == nil {
			return message.Reply{}, message.Errorf(message.Invalid, "unknown operation %q", r.Op)
		}
		t := &tree{dirs: dirs, quick: r.Quick, temp: cmp.Or(r.Temp, rand.Text()), approved: r.Approved}
		defer t.letGo()
		return h(ctx, t, r)
	}
}
