package query

import (
	"context"
	"errors"
	"slices"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/history"
)

// client answers a request of a client of the agent's tools. It does not touch the state of the operator's
// requests: the list in memory, and the undo that Cancel ends. Reply.Nothing says what is missing; errors are for the operator.
func (s *Server) client(ctx context.Context, r *Request) (*Reply, error) {
	if s.Hooks.May == nil || s.Hooks.Read == nil {
		return nil, errors.New("the agent has no view, whose rules decide")
	}
	reply, err := s.ofClient(ctx, r)
	if nothing, ok := errors.AsType[*history.ErrNothing](err); ok {
		return &Reply{Nothing: nothing.Why, Unknown: !nothing.Unchanged}, nil
	}
	return reply, err
}

func (s *Server) ofClient(ctx context.Context, r *Request) (*Reply, error) {
	switch {
	case s.Branch != nil:
		return s.clientOfBranch(ctx, r)
	case r.Checkpoint != nil:
		id, err := s.Store.Checkpoint(*r.Checkpoint, r.Client, s.Hooks)
		return &Reply{Checkpoint: id}, err
	case r.Newest != nil:
		r.Newest.Client = r.Client
		return s.newest(*r.Newest)
	case r.Changes != nil:
		r.Changes.Client = r.Client
		entries, err := s.changes(*r.Changes)
		if err != nil {
			return nil, err
		}
		return page(s.readable(entries), 0), nil
	case r.Effects != nil:
		return s.effects(r.Effects, s.Hooks.Read)
	case r.Undo != nil:
		r.Undo.Client, r.Undo.Undo, r.Undo.Force = r.Client, false, false
		result, err := s.Store.Undo(ctx, *r.Undo, s.Hooks)
		if err != nil {
			return nil, err
		}
		return undoReply(result, s.readable(entriesOf(&result.Plan))), nil
	case r.Read != nil:
		if rel, err := event.Unescape(r.Read.Path); err != nil || rel != "" && !s.single(rel) {
			return nil, &history.ErrNothing{Why: "the agent's rules do not let it be read"}
		}
		data := make([]byte, dataBytes)
		content, err := s.read(*r.Read, data, r.Offset)
		return &Reply{Content: content}, err
	}
	return nil, errors.New("no request of a client")
}

// single reports whether the rules let a present file be read that has one name: a rule may hide another one.
func (s *Server) single(rel string) bool {
	names, err := s.Store.Names(rel)
	return err == nil && names <= 1 && s.Hooks.Read(rel) == nil
}

// readable returns the entries about paths that the agent's rules let it read.
func (s *Server) readable(entries []Entry) []Entry {
	hidden := func(paths ...string) bool {
		return slices.ContainsFunc(paths, func(p string) bool {
			rel, err := event.Unescape(p)
			return err != nil || rel != "" && s.Hooks.Read(rel) != nil
		})
	}
	return slices.DeleteFunc(entries, func(e Entry) bool {
		switch {
		case e.Change != nil:
			return hidden(e.Change.Path, e.Change.From, e.Change.Old.Path, e.Change.New.Path)
		case e.Step != nil:
			return hidden(e.Step.Path, e.Step.To)
		case e.Conflict != nil:
			return hidden(e.Conflict.Path)
		}
		return e.Unkept != nil && hidden(e.Unkept.Path)
	})
}
