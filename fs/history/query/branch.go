package query

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/fs/history"
)

// answerBranch answers a request about a branch.
func (s *Server) answerBranch(ctx context.Context, r *Request) (*Reply, error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	switch {
	case r.Diff != nil:
		var hash string
		reply, err := s.listing(r, func() ([]Entry, error) {
			ctx, _, end := s.begin(ctx)
			defer end()
			set, err := s.Branch.Diff(ctx, r.Diff.Paths, r.Diff.Hash != "")
			if err != nil {
				return nil, err
			}
			hash = set.Hash
			return differences(set.Entries), nil
		})
		if err == nil {
			reply.Hash, reply.Forked = hash, s.Branch.Forked()
			reply.Same = reply.Total == 0 && len(r.Diff.Paths) == 0
		}
		return reply, err
	case r.Commit != nil && r.Offset == 0:
		return s.commit(ctx, r)
	case r.Discard != nil && r.Offset == 0:
		ctx, _, end := s.begin(ctx)
		defer end()
		done, _, err := s.Branch.Discard(ctx, r.Discard.Paths, r.Discard.Hash)
		if r.Discard.Hash != "" && errors.Is(err, branch.ErrChanged) {
			return &Reply{Stale: true}, nil
		}
		return &Reply{Result: &history.Result{Done: done}, Same: err == nil && len(r.Discard.Paths) == 0}, err
	case r.Commit != nil:
		return s.listing(r, func() ([]Entry, error) {
			return nil, errors.New("the list of the commit is not in memory any more")
		})
	}
	return nil, errors.New("what rules hold has no history: scopefs diff, commit or discard")
}

// commit takes differences over. The entries of the reply are those with a conflict, and then those that were taken.
func (s *Server) commit(ctx context.Context, request *Request) (*Reply, error) {
	ctx, progress, end := s.begin(ctx)
	defer end()
	reply, entries, err := s.take(ctx, request.Commit, progress)
	if errors.Is(err, branch.ErrChanged) {
		return &Reply{Stale: true}, nil
	}
	if err != nil {
		return nil, err
	}
	s.remember(request, entries)
	page := page(entries, 0)
	reply.Entries, reply.Total = page.Entries, page.Total
	return reply, nil
}

// take takes differences over. It returns the reply, and its entries.
func (s *Server) take(ctx context.Context, c *Branch, progress func(done, total int)) (*Reply, []Entry, error) {
	opt := branch.Options{Paths: c.Paths, Hash: c.Hash, Only: c.Only, Conflicts: c.Conflicts, May: s.Take, Progress: progress, Check: c.Check}
	r, err := s.Branch.Commit(ctx, opt)
	if err != nil {
		return nil, nil, err
	}
	merged := 0
	for _, e := range r.Taken {
		if e.Merge == branch.Merged {
			merged++
		}
	}
	return &Reply{
		Same:      !c.Check && len(c.Paths) == 0 && len(c.Only) == 0 && len(r.Conflicts) == 0,
		Conflicts: len(r.Conflicts),
		Result:    &history.Result{Done: len(r.Taken)},
		Merged:    merged,
	}, append(differences(r.Conflicts), differences(r.Taken)...), nil
}

// differences returns the entries of a diff.
func differences(list []branch.Entry) []Entry {
	entries := make([]Entry, len(list))
	for i, e := range list {
		c := &history.Change{
			Kind: e.Kind, Path: event.Escape(e.Path), From: event.Escape(e.From), Type: e.Type, Mode: e.Mode,
			OldMode: e.OldMode, NewMode: e.NewMode, OldSize: e.OldSize, NewSize: e.NewSize, Conflict: e.Conflict, Merge: e.Merge,
		}
		before := c.Path
		if e.From != "" {
			before = c.From
		}
		if e.Kind != history.Added {
			c.Old = history.Version{Generation: history.Base, Path: before}
		}
		if e.Kind != history.Deleted {
			c.New = history.Version{Path: c.Path, Sum: e.Sum()}
		}
		if e.Kind == history.ModeChanged || e.Kind == history.Renamed && !e.Content {
			c.Old = c.New // the content is the same
		}
		entries[i].Change = c
	}
	return entries
}

// Together returns one hash of what differs in several directories, from the hashes by where the directories are: "" is the agent's own.
// Alone, that has its own hash. A root never has: two directories with the same changes have one hash.
func Together(hashes map[string]string) string {
	if len(hashes) == 1 && hashes[""] != "" {
		return hashes[""]
	}
	sum := sha256.New()
	for _, root := range slices.Sorted(maps.Keys(hashes)) {
		fmt.Fprintf(sum, "%q %s\n", root, hashes[root])
	}
	return hex.EncodeToString(sum.Sum(nil))
}
