package api

import (
	"context"
	"time"

	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
)

// The values of history.Change.Merge that do not say why there is no merge.
const (
	MergeClean = branch.MergeClean
	Merged     = branch.Merged
)

// Differences are what differs between an agent's branch and its directory.
type Differences struct {
	List   []history.Change // sorted by path
	Hash   string
	Forked time.Time
}

// Diff returns what differs, of what the patterns of scope.PathRule cover: all of it without patterns. With hashed it has
// the hash, for which the agent's files are read.
func (h *History) Diff(ctx context.Context, paths []string, hashed bool) (*Differences, error) {
	sel := query.Branch{Paths: paths}
	if hashed {
		sel.Hash = "requested"
	}
	first, entries, err := h.pages(ctx, query.Request{Diff: &sel})
	if err != nil {
		return nil, err
	}
	return &Differences{List: changesOf(entries), Hash: first.Hash, Forked: first.Forked}, nil
}

func changesOf(entries []query.Entry) []history.Change {
	list := []history.Change{}
	for _, e := range entries {
		if e.Change != nil {
			list = append(list, *e.Change)
		}
	}
	return list
}

// Committed is what a commit did.
type Committed struct {
	Taken     []history.Change `json:"taken"`
	Conflicts []history.Change `json:"conflicts"`
}

// CommitOptions selects what a commit takes. The zero value takes everything if nothing conflicts.
type CommitOptions struct {
	Paths  []string // patterns of scope.PathRule; none: all
	Theirs bool     // of conflicts take the agent's version
	Ours   bool     // of conflicts leave the directory's version
	Merge  bool     // of conflicts take both changes to a text, or else leave the directory's version
	Hash   string   // of Differences with the same Paths: others are a Conflict; "": any
	Check  bool     // it changes nothing
}

// Commit takes what differs over into the directory.
func (h *History) Commit(ctx context.Context, opt CommitOptions) (*Committed, error) {
	sel := query.Branch{Paths: opt.Paths, Hash: opt.Hash, Check: opt.Check}
	switch {
	case opt.Theirs:
		sel.Conflicts = branch.Theirs
	case opt.Ours:
		sel.Conflicts = branch.Ours
	case opt.Merge:
		sel.Conflicts = branch.Merge
	}
	first, entries, err := h.pages(ctx, query.Request{Commit: &sel})
	if first == nil {
		return nil, err
	}
	if err := stale(first); err != nil {
		return nil, err
	}
	list := changesOf(entries)
	conflicts := min(first.Conflicts, len(list))
	return &Committed{Conflicts: list[:conflicts], Taken: list[conflicts:]}, err
}

// Discard drops what differs, and returns how much that was. With the hash of Differences of the same paths, others are a Conflict;
// "": any.
func (h *History) Discard(ctx context.Context, paths []string, hash string) (int, error) {
	reply, err := h.request(ctx, query.Request{Discard: &query.Branch{Paths: paths, Hash: hash}})
	if err == nil {
		err = stale(reply)
	}
	if err != nil || reply.Result == nil {
		return 0, err
	}
	return reply.Result.Done, nil
}
