package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/fs/judge"
	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/internal/spooled"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// historian serves requests about the agent's history, in the view's process.
type historian interface {
	// Serve returns the answer to a request, of at most wire.MaxHistoryAnswer bytes. It may take long. Several goroutines call it.
	// ctx ends when the daemon is gone: no request goes on then.
	Serve(ctx context.Context, request json.RawMessage) (json.RawMessage, error)
}

// mayKeep returns an error for a directory on a shared file system that has no RENAME_NOREPLACE of renameat2(2): a history ends its
// generations with it, and an undo replaces nothing by it. Servers of FUSE may lack it: fuse_rename2 in linux/fs/fuse/dir.c.
func mayKeep(history int, remote bool) error {
	if !remote {
		return nil
	}
	root, err := beneath.NewDetached(history)
	if err != nil {
		return err
	}
	dir, err := root.Dir("")
	if err != nil {
		return err
	}
	defer dir.Close()
	const from, to = "probe", "probed"
	_ = dir.Rmdir(to) // of a view that was killed
	if err := dir.Mkdir(from, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("history: %w", err)
	}
	err = dir.Rename(from, dir, to, unix.RENAME_NOREPLACE)
	_, _ = dir.Rmdir(from), dir.Rmdir(to) // one of them is there
	if err != nil {
		return fmt.Errorf("history: its file system has no renameat2(2) with RENAME_NOREPLACE: write view: {changes: direct}: %w", err)
	}
	return nil
}

// openHistory opens the history of the scope root in the directory of a descriptor, on the mount of root; with layers, which hold every
// change, their history.
func openHistory(cfg wire.HistoryConfig, root *beneath.Root, dir int, layers *hold.Layers, l *daemonLink, counter *quota.Counter) (*history.Store, error) {
	kept, err := beneath.NewDetached(dir)
	if err != nil {
		return nil, err
	}
	opt := history.Options{
		Actor: l.actor, Size: cfg.Bytes, Percent: cfg.Percent, Age: cfg.Age, Exclude: cfg.Exclude, Unkept: cfg.Unkept, Logger: slog.Default(),
		Dropped: l.dropped, Quota: counter,
	}
	if isRepository(root) {
		opt.Within = ".git/"
	}
	if layers != nil {
		root, opt.Layer = layers.Upper, layers
		if kept, err = keptOf(layers.State); err != nil {
			return nil, err
		}
	}
	corrected := 0
	open := func() (s *history.Store, err error) {
		s, corrected, err = history.Open(root, kept, opt)
		return s, err
	}
	store, err := branch.WaitFor(open) // a command may be about to end
	if errors.Is(err, history.ErrBusy) {
		err = errors.New("another run keeps its changes: wait until that ends, or start scopefs daemon, in a project with --dir, for several")
	}
	if err != nil {
		return nil, err
	}
	if corrected > 0 {
		slog.LogAttrs(context.Background(), slog.LevelWarn, "history: journals were corrected after a crash", slog.Int("count", corrected))
	}
	return store, nil
}

// keptOf returns the directory of the history of layers, which it makes.
func keptOf(state *beneath.Root) (*beneath.Root, error) {
	top, err := state.Dir("")
	if err != nil {
		return nil, err
	}
	defer top.Close()
	if err := top.Mkdir(hold.KeptName, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("history: %s: %w", hold.KeptName, err)
	}
	return state.Sub(hold.KeptName)
}

// dropped records what the history has given up. It waits for nothing: the daemon may be slow, or still configure the view.
func (l *daemonLink) dropped(count int, why string) {
	before, done := l.pruned, make(chan struct{})
	l.pruned = done
	go func() {
		defer close(done)
		<-l.configured
		if before != nil {
			<-before
		}
		if _, err := l.request(wire.FromView{Pruned: &wire.Pruned{Generations: count, Why: why}}, nil); err != nil {
			slog.LogAttrs(context.Background(), slog.LevelWarn, "history: the oldest generations are given up, which cannot be recorded",
				slog.Int("count", count), slog.String("why", why), slog.Any("err", err))
		}
	}()
}

// openLayers opens what a view holds of the scope base, in the directory of the history.
func openLayers(cfg *wire.Config, base *beneath.Root) (*hold.Layers, error) {
	state, err := beneath.NewDetached(wire.HistoryFD)
	if err != nil {
		return nil, err
	}
	if !cfg.Whole && !cfg.Offline { // beside what is kept
		dir, err := state.Object(hold.StateName)
		if err != nil {
			return nil, fmt.Errorf("held changes: %w", err)
		}
		state = beneath.NewRoot(dir.FD())
	}
	return hold.Open(base, state, !cfg.Offline)
}

// openBranch opens what a view holds, to list it and take it over. By policy it is of what rules hold alone. Without a view it opens the
// history of the layers as well.
func openBranch(cfg *wire.Config, base *beneath.Root, policy *scope.Policy, l *daemonLink) (*query.Server, error) {
	layers, err := openLayers(cfg, base)
	if err != nil {
		return nil, err
	}
	roots := branch.Roots{Layers: layers, Judged: func(rel string) bool { return judge.Whole(policy, rel) }}
	if !cfg.Whole {
		roots.Held = policy.Held
	}
	merged := layers.View()
	roots.Link = func(rel, text string) error { return judge.Link(policy, merged, rel, text) }
	b, err := branch.WaitFor(func() (*branch.Branch, error) { return branch.Open(roots) })
	if err != nil {
		return nil, err
	}
	s := &query.Server{Branch: b, Take: func(rel string) error { return judge.Take(policy, b.Base, b.Merged, rel) }}
	if cfg.History != nil {
		if err = layers.Load(); err == nil {
			s.Store, err = openHistory(*cfg.History, base, wire.HistoryFD, layers, l, nil)
		}
	}
	return s, err
}

// resumeHistory finishes the undos or the commit that a crash has interrupted. Nobody waits for it but the next one.
func resumeHistory(s *query.Server) {
	if s.Branch != nil {
		r, err := s.Branch.Resume()
		if err != nil {
			slog.LogAttrs(context.Background(), slog.LevelError, "branch: finish an interrupted commit", slog.Any("err", err))
		} else if r != nil {
			slog.LogAttrs(context.Background(), slog.LevelWarn, "branch: an interrupted commit was finished",
				slog.Int("taken", len(r.Taken)), slog.Int("conflicts", len(r.Conflicts)))
		}
	}
	if s.Store == nil {
		return
	}
	results, err := s.Store.Resume(context.Background(), s.Hooks)
	if err != nil {
		slog.LogAttrs(context.Background(), slog.LevelError, "history: finish an interrupted undo", slog.Any("err", err))
	}
	for _, r := range results {
		slog.LogAttrs(context.Background(), slog.LevelWarn, "history: an interrupted undo was finished",
			slog.Int("done", r.Done), slog.Int("conflicts", len(r.Conflicts)))
	}
}

// serveOffline serves the daemon's requests about the history, without a mount, until the daemon closes the connection. It
// calls resume first, which may take longer than the daemon waits for a process that starts.
func (l *daemonLink) serveOffline(conn *connection, measures []string, resume func()) error {
	go conn.heart.Serve(func() {})
	if err := conn.wire.Send(wire.FromView{Ready: measures}); err != nil {
		return err
	}
	resume()
	l.listen(conn, nil)
	return nil
}

// serveHistory answers a request about the history.
func (l *daemonLink) serveHistory(ctx context.Context, conn *connection, id uint64, request json.RawMessage) {
	reply, err := json.RawMessage(nil), wire.ErrNoHistory
	if l.leased && errors.Is(l.Err(), errLease) {
		err = errLease // its answer may be stale, too
	} else if l.history != nil {
		reply, err = l.history.Serve(ctx, request)
	}
	// An answer over the bound of messages would end the connection. Marshal escapes as Send does.
	if text, marshalErr := json.Marshal(reply); err == nil && marshalErr != nil {
		err = fmt.Errorf("answer: %w", marshalErr)
	} else if err == nil && len(text) > wire.MaxHistoryAnswer {
		err = fmt.Errorf("the answer has %d bytes, and %d at most are sent: request fewer entries", len(text), wire.MaxHistoryAnswer)
	} else if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = errors.New("the file system of the directory is full: make room on it, and repeat the command")
	}
	answer := wire.FromView{Answer: id, History: reply}
	if err != nil {
		answer.History, answer.Failed = nil, string(spooled.Cut(err.Error()))
	}
	_ = conn.wire.Send(answer)
}

// actor returns the session and the call for which a process changes files. It requests them of the daemon: no lock that the daemon or another request needs may
// be held.
func (l *daemonLink) actor(pid uint32) (history.Actor, error) {
	reply, err := l.request(wire.FromView{Who: pid}, nil)
	if err == nil && reply.Actor == nil {
		err = errors.New("the daemon did not answer")
	}
	if err != nil {
		return history.Actor{}, fmt.Errorf("for whom process %d changes a file: %w", pid, err)
	}
	return *reply.Actor, nil
}
