package file

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file/worker"
)

var errBlob = errors.New("bytes beside a value that has none")

// handler performs one operation in the worker.
type handler func(context.Context, *tree, *worker.Request) (worker.Reply, error)

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
	case opTake:
		return handlerOf((*tree).take)
	case opSweep:
		return handlerOf((*tree).sweep)
	case opPreview:
		return handlerOf((*tree).preview)
	case opHash:
		return handlerOf((*tree).hash)
	}
	return nil
}

// handlerOf returns the handler for a method. After ESTALE it calls the method once
// more: the name was replaced between lookup and open, and now names the new object.
func handlerOf[In, Out any](f func(*tree, context.Context, In) (Out, error)) handler {
	return func(ctx context.Context, t *tree, r *worker.Request) (reply worker.Reply, err error) {
		var in In
		if err = peer.Decode(r.Args, &in); err == nil {
			err = attach(&in, r.Blob)
		}
		if err != nil {
			return reply, tools.Errorf(tools.Invalid, "arguments: %v", err)
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
		if c, ok := any(&out).(carrier); ok {
			reply.Blob = c.detach()
		}
		reply.Result, err = json.Marshal(out)
		return reply, err
	}
}

func stale(err error) bool { return errors.Is(err, unix.ESTALE) }

// Handler returns the worker's handler for the files below root.
func Handler(root string) worker.Handler {
	return func(ctx context.Context, r *worker.Request) (worker.Reply, error) {
		h := handlers(r.Op)
		if h == nil {
			return worker.Reply{}, tools.Errorf(tools.Invalid, "unknown operation %q", r.Op)
		}
		t := &tree{root: root, quick: r.Quick, temp: cmp.Or(r.Temp, rand.Text()), approved: r.Approved}
		defer t.letGo()
		return h(ctx, t, r)
	}
}
