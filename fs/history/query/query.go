// Package query answers requests about a history. The daemon sends them as JSON, for the operator or for a client, to the
// process that has the history open.
package query

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/branch"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/scope/effect"
)

// Request is a request to a Server. One field beside Client, Held and Offset is set. A list comes in pages of Reply.Entries:
// send the request again with the number of received entries as Offset, up to Reply.Total. An Undo with an Offset only lists. Paths
// of requests and replies are escaped as in the log: [event.Escape].
type Request struct {
	Checkpoint  *string            `json:"checkpoint,omitempty"`  // its name: begins one
	Generations *time.Time         `json:"generations,omitempty"` // lists those since then
	Newest      *history.Selection `json:"newest,omitempty"`      // the last Generation that it means: see history.Store.Newest
	Changes     *history.Selection `json:"changes,omitempty"`     // lists changes
	Plan        *history.Selection `json:"plan,omitempty"`        // lists what an undo would do
	Undo        *history.Selection `json:"undo,omitempty"`        // takes changes back
	Shown       string             `json:"shown,omitempty"`       // of Undo: the hash of the Plan that is meant; "": any
	Effects     *history.Work      `json:"effects,omitempty"`     // of a call or a session
	Before      *history.Selection `json:"before,omitempty"`      // the Version of the one path of it before the changes
	Read        *history.Version   `json:"read,omitempty"`        // a part of a content, from Offset on
	Reads       []history.Version  `json:"reads,omitempty"`       // contents: Reply.Contents has the first ones of them
	Progress    bool               `json:"progress,omitempty"`    // of the undo that runs
	Cancel      bool               `json:"cancel,omitempty"`      // it: what it has done is taken back
	Diff        *Branch            `json:"diff,omitempty"`        // lists what differs between a branch and the directory
	Commit      *Branch            `json:"commit,omitempty"`      // takes it over into the directory
	Discard     *Branch            `json:"discard,omitempty"`     // drops it
	Held        bool               `json:"held,omitempty"`        // it is about what rules hold; as a branch
	Offset      int64              `json:"offset,omitempty"`      // of Read in bytes, of lists in entries

	// Client is the session that sends the request, of a client of the agent's tools; "" for the operator. A client reaches its
	// own changes and checkpoints alone, and what the agent's rules let it read now. It gets the first page of a list.
	Client string `json:"client,omitempty"`
}

// Reply answers a Request.
type Reply struct {
	Checkpoint string           `json:"checkpoint,omitempty"` // its id
	Result     *history.Result  `json:"result,omitempty"`     // of an undo; its lists are in Entries
	Nothing    string           `json:"nothing,omitempty"`    // why a list of changes is empty
	Unknown    bool             `json:"unknown,omitempty"`    // Nothing is because what the request names is not there
	Total      int              `json:"total,omitempty"`      // entries, of which Entries has the first from Offset on
	Entries    []Entry          `json:"entries,omitempty"`
	Version    *history.Version `json:"version,omitempty"`
	Content                     // Read
	Contents   []Content        `json:"contents,omitempty"`  // Reads: at least one, as many as the reply has room for
	Done       int              `json:"done,omitempty"`      // Progress: steps, of Total
	Conflicts  int              `json:"conflicts,omitempty"` // of an undo, in all Entries
	Unkept     int              `json:"unkept,omitempty"`
	Hash       string           `json:"hash,omitempty"`   // of what differs, or of a plan
	Merged     int              `json:"merged,omitempty"` // files of a commit
	Same       bool             `json:"same,omitempty"`   // the branch is as the directory
	Forked     time.Time        `json:"forked,omitzero"`  // when the branch was made
	Stale      bool             `json:"stale,omitempty"`  // nothing was done: what is there has not the hash of the request
	Shown      *Shown           `json:"shown,omitempty"`  // to a client: what differs
	Effects    *effect.Effects  `json:"effects,omitempty"`
	Until      uint64           `json:"until,omitempty"` // the number of the last of Effects
}

// Content is a content, or a part of one.
type Content struct {
	Data []byte `json:"data,omitempty"`
	Size int64  `json:"size,omitempty"` // of the whole content
	Link bool   `json:"link,omitempty"` // it is the text of a symbolic link
	Why  string `json:"why,omitempty"`  // Reads: why it cannot be read
}

// Branch selects what differs between a branch and the directory.
type Branch struct {
	Paths     []string         `json:"paths,omitempty"`     // patterns of scope.PathRule, not escaped; none: all
	Hash      string           `json:"hash,omitempty"`      // of Diff: not "" requests it; else what has another one is refused
	Only      []string         `json:"only,omitempty"`      // of Commit: what it takes of what has the hash
	Whole     bool             `json:"whole,omitempty"`     // of Diff of a client: for the operator, with what the rules hide
	Conflicts branch.Conflicts `json:"conflicts,omitempty"` // of Commit
	Check     bool             `json:"check,omitempty"`     // of Commit: it changes nothing
}

// Entry is one of a list. One field is set.
type Entry struct {
	Generation *history.Generation `json:"generation,omitempty"`
	Change     *history.Change     `json:"change,omitempty"`
	Step       *history.Step       `json:"step,omitempty"`
	Conflict   *history.Problem    `json:"conflict,omitempty"`
	Unkept     *history.Problem    `json:"unkept,omitempty"`
}

// The bounds of a reply, in bytes.
const (
	pageBytes  = 96 << 10 // of several entries
	dataBytes  = 96 << 10
	maxPath    = 4 << 10  // of what an entry is about, as in the log
	maxVersion = 64 << 10 // of the path of a Version as JSON; an entry has two
)

// Server answers requests about a Store. Its methods may be used from any goroutine.
type Server struct {
	Store  *history.Store // nil: none; of a Branch, of its layers
	Branch *branch.Branch // nil: none
	Hooks  history.Hooks
	Take   func(rel string) error // the agent's rules let a commit of Branch change a path

	turn sync.Mutex // held by a request about Branch

	mu     sync.Mutex
	listed string // the request of list, without Offset
	list   []Entry
	done   int
	total  int
	cancel context.CancelFunc // of the undo that runs
}

// Serve answers one request. The error is for the operator.
func (s *Server) Serve(ctx context.Context, request json.RawMessage) (json.RawMessage, error) {
	var r Request
	if err := json.Unmarshal(request, &r); err != nil {
		return nil, err
	}
	reply, err := s.answer(ctx, &r)
	if err != nil {
		return nil, err
	}
	return json.Marshal(reply)
}

func (s *Server) answer(ctx context.Context, r *Request) (*Reply, error) {
	for _, sel := range []*history.Selection{r.Changes, r.Plan, r.Undo, r.Before} {
		if sel == nil {
			continue
		}
		for i, p := range sel.Paths {
			rel, err := event.Unescape(p)
			if err != nil {
				return nil, fmt.Errorf("path %q: %w", p, err)
			}
			sel.Paths[i] = rel
		}
	}
	if r.Client != "" {
		return s.client(ctx, r)
	}
	switch {
	case r.Progress:
		s.mu.Lock()
		defer s.mu.Unlock()
		return &Reply{Done: s.done, Total: s.total}, nil
	case r.Cancel:
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.cancel != nil {
			s.cancel()
		}
		return &Reply{}, nil
	case r.Read != nil:
		data := make([]byte, dataBytes)
		content, err := s.read(*r.Read, data, r.Offset)
		return &Reply{Content: content}, err
	case r.Reads != nil:
		return &Reply{Contents: s.readAll(r.Reads)}, nil
	case s.Branch != nil && (s.Store == nil || r.Diff != nil || r.Commit != nil || r.Discard != nil):
		return s.answerBranch(ctx, r)
	case s.Branch != nil:
		s.turn.Lock()
		defer s.turn.Unlock()
	}
	switch {
	case r.Diff != nil || r.Commit != nil || r.Discard != nil:
		return nil, errors.New("no branch: write view: {changes: held} into the definition")
	case r.Checkpoint != nil:
		id, err := s.Store.Checkpoint(*r.Checkpoint, "", s.Hooks)
		return &Reply{Checkpoint: id}, err
	case r.Generations != nil:
		return s.listing(r, func() ([]Entry, error) { return s.generations(*r.Generations) })
	case r.Newest != nil:
		return s.newest(*r.Newest)
	case r.Changes != nil:
		return s.listing(r, func() ([]Entry, error) { return s.changes(*r.Changes) })
	case r.Effects != nil:
		return s.effects(r.Effects, nil)
	case r.Plan != nil:
		var hash string
		reply, err := s.listing(r, func() ([]Entry, error) {
			p, err := s.Store.Plan(*r.Plan, s.Hooks)
			if err != nil {
				return nil, err
			}
			hash = hashOf(p)
			return entriesOf(p), nil
		})
		if err == nil {
			reply.Hash = hash
		}
		return reply, err
	case r.Undo != nil && r.Offset > 0:
		return s.listing(r, func() ([]Entry, error) {
			return nil, errors.New("the list of the undo is not in memory any more")
		})
	case r.Undo != nil:
		return s.undo(ctx, r)
	case r.Before != nil && len(r.Before.Paths) == 1:
		rel := r.Before.Paths[0]
		sel := *r.Before
		sel.Paths = nil
		v, err := s.Store.Before(rel, sel)
		v.Path = event.Escape(v.Path)
		return &Reply{Version: &v}, err
	}
	return nil, errors.New("no request")
}

func (s *Server) generations(since time.Time) ([]Entry, error) {
	list, err := s.Store.Generations(since)
	entries := make([]Entry, len(list))
	for i := range list {
		list[i].Undo = escaped(list[i].Undo)
		entries[i].Generation = &list[i]
	}
	return entries, err
}

// newest answers with the last generation that is meant, or why there is none.
func (s *Server) newest(sel history.Selection) (*Reply, error) {
	g, err := s.Store.Newest(sel)
	if nothing, ok := errors.AsType[*history.ErrNothing](err); ok {
		return &Reply{Nothing: nothing.Why, Unknown: !nothing.Unchanged}, nil
	}
	if err != nil {
		return nil, err
	}
	g.Undo = escaped(g.Undo)
	return &Reply{Entries: []Entry{{Generation: g}}, Total: 1}, nil
}

// escaped returns a selection of a header with its paths as in replies.
func escaped(sel *history.Selection) *history.Selection {
	if sel == nil {
		return nil
	}
	with := *sel
	with.Paths = slices.Clone(sel.Paths)
	for i, p := range with.Paths {
		with.Paths[i] = event.Escape(p)
	}
	return &with
}

func (s *Server) changes(sel history.Selection) ([]Entry, error) {
	list, err := s.Store.Changes(sel)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, &history.ErrNothing{Why: "nothing was changed there", Unchanged: true}
	}
	entries := make([]Entry, len(list))
	for i := range list {
		c := &list[i]
		c.Path, c.From = event.Escape(c.Path), event.Escape(c.From)
		c.Old.Path, c.New.Path = event.Escape(c.Old.Path), event.Escape(c.New.Path)
		entries[i].Change = c
	}
	return entries, nil
}

// effects returns what a call or a session has changed, without the paths that may not be read.
func (s *Server) effects(w *history.Work, read func(rel string) error) (*Reply, error) {
	e, until, err := s.Store.Effects(*w)
	if err != nil {
		return nil, err
	}
	if read != nil {
		e.Hide(func(rel string) bool { return read(rel) != nil })
	}
	for _, o := range e.Listed() {
		o.Path, o.From = event.Escape(o.Path), event.Escape(o.From)
	}
	return &Reply{Effects: e, Until: until}, nil
}

// begin begins what Progress and Cancel are about. The caller calls end.
func (s *Server) begin(ctx context.Context) (cancelled context.Context, progress func(done, total int), end context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel, s.done, s.total = cancel, 0, 0
	return ctx, func(done, total int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.done, s.total = done, total
	}, cancel
}

func (s *Server) undo(ctx context.Context, request *Request) (*Reply, error) {
	ctx, progress, end := s.begin(ctx)
	defer end()
	hooks := s.Hooks
	hooks.Progress = progress
	if request.Shown != "" {
		hooks.Agree = func(p *history.Plan) error {
			if hashOf(p) != request.Shown {
				return errStale
			}
			return nil
		}
	}
	r, err := s.Store.Undo(ctx, *request.Undo, hooks)
	if errors.Is(err, context.Canceled) && r != nil && r.Rolled {
		err = nil
	}
	if err == errStale {
		return &Reply{Stale: true}, nil
	}
	if nothing, ok := errors.AsType[*history.ErrNothing](err); ok {
		return &Reply{Nothing: nothing.Why}, nil
	}
	if err != nil {
		return nil, err
	}
	entries := entriesOf(&r.Plan)
	s.remember(request, entries)
	return undoReply(r, entries), nil
}

var errStale = errors.New("the plan has not the hash of the request")

// hashOf returns the SHA-256 of what a plan would do, and of the state of what it would change, in hex. What a list leaves out is not
// in it.
func hashOf(p *history.Plan) string {
	h := sha256.New()
	for _, step := range p.Steps {
		if !step.OnlyTimes() {
			fmt.Fprintf(h, "%s %q %q %s\n", step.Action, step.Path, step.To, step.Seen())
		}
	}
	for _, list := range [][]history.Problem{p.Conflicts, p.Unkept} {
		for _, one := range list {
			fmt.Fprintf(h, "%q %q\n", one.Path, one.Why)
		}
		fmt.Fprintln(h)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// undoReply returns the reply to an undo, with the first entries of its list.
func undoReply(r *history.Result, entries []Entry) *Reply {
	reply := page(entries, 0)
	reply.Conflicts, reply.Unkept = len(r.Conflicts), len(r.Unkept)
	reply.Result = &history.Result{Generation: r.Generation, Done: r.Done, Rolled: r.Rolled}
	return reply
}

// entriesOf returns the list of an undo: conflicts and what was not kept, then steps.
func entriesOf(r *history.Plan) []Entry {
	var entries []Entry
	for i := range r.Conflicts {
		r.Conflicts[i].Path = event.Escape(r.Conflicts[i].Path)
		entries = append(entries, Entry{Conflict: &r.Conflicts[i]})
	}
	for i := range r.Unkept {
		r.Unkept[i].Path = event.Escape(r.Unkept[i].Path)
		entries = append(entries, Entry{Unkept: &r.Unkept[i]})
	}
	for i := range r.Steps {
		step := &r.Steps[i]
		if step.Inner() {
			continue
		}
		step.Path = event.Escape(step.Path)
		if step.To = event.Escape(step.To); step.Action == history.Restore || step.Action == history.Return {
			step.To = "" // a place in the history
		}
		entries = append(entries, Entry{Step: step})
	}
	return entries
}

// listing returns a page of a list. It makes the list for the first page, and when the last list was another one.
func (s *Server) listing(r *Request, list func() ([]Entry, error)) (*Reply, error) {
	offset := r.Offset
	r.Offset = 0
	s.mu.Lock()
	entries := s.list
	known := offset > 0 && s.listed == textOf(r)
	s.mu.Unlock()
	if !known {
		var err error
		entries, err = list()
		if nothing, ok := errors.AsType[*history.ErrNothing](err); ok && (nothing.Unchanged || r.Plan != nil) {
			return &Reply{Nothing: nothing.Why}, nil
		}
		if err != nil {
			return nil, err
		}
		s.remember(r, entries)
	}
	return page(entries, offset), nil
}

// remember keeps the list of a request, for its further pages.
func (s *Server) remember(r *Request, entries []Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed, s.list = textOf(r), entries
}

func textOf(r *Request) string {
	text, _ := json.Marshal(r) // it was read as JSON
	return string(text)
}

// page returns the entries from an offset on that a reply has room for.
func page(entries []Entry, offset int64) *Reply {
	reply := &Reply{Total: len(entries)}
	size := 0
	for _, e := range entries[min(max(offset, 0), int64(len(entries))):] {
		e = bounded(e)
		text, _ := json.Marshal(e) // it has strings and numbers
		if size += len(text); size > pageBytes && len(reply.Entries) > 0 {
			break
		}
		reply.Entries = append(reply.Entries, e)
	}
	return reply
}

// bounded returns an entry with its paths clipped as in the log. A version whose path has no room in a request is left out.
func bounded(e Entry) Entry {
	e.Change, e.Step, e.Conflict, e.Unkept = clone(e.Change), clone(e.Step), clone(e.Conflict), clone(e.Unkept)
	var paths []*string
	switch c := e.Change; {
	case c != nil:
		paths = []*string{&c.Path, &c.From}
		for _, v := range []*history.Version{&c.Old, &c.New} {
			if len(v.Path) > maxVersion/6 && sizeOf(v.Path) > maxVersion {
				*v = history.Version{}
			}
		}
	case e.Step != nil:
		paths = []*string{&e.Step.Path, &e.Step.To}
	case e.Conflict != nil:
		paths = []*string{&e.Conflict.Path}
	case e.Unkept != nil:
		paths = []*string{&e.Unkept.Path}
	}
	for _, p := range paths {
		if rel, err := event.Unescape(*p); len(*p) > maxPath && err == nil {
			*p = event.Bound(rel, maxPath)
		}
	}
	return e
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

// readAll reads contents from their starts. It returns at least one, and of the first one that has no room for the whole, alone, a part.
func (s *Server) readAll(list []history.Version) (contents []Content) {
	const (
		fixed  = 64  // bytes of a Content without Data and Why
		maxWhy = 512 // Why is escaped to six times its length at most
	)
	for room := make([]byte, dataBytes); len(contents) < len(list) && len(room) > fixed; {
		c, err := s.read(list[len(contents)], room[fixed:], 0)
		if err != nil {
			c = Content{Why: err.Error()[:min(len(err.Error()), maxWhy)]}
		}
		took := fixed + len(c.Data) + 6*len(c.Why)
		if len(contents) > 0 && (int64(len(c.Data)) < c.Size || took > len(room)) {
			break
		}
		contents, room = append(contents, c), room[took:]
	}
	return contents
}

// read reads a content into p, from an offset on.
func (s *Server) read(v history.Version, p []byte, offset int64) (Content, error) {
	rel, err := event.Unescape(v.Path)
	if err != nil {
		return Content{}, err
	}
	v.Path = rel
	read := func() (int, int64, bool, error) { return s.Store.Read(v, p, offset) }
	if s.Branch != nil && (v.Generation == "" || v.Generation == history.Base) {
		root := s.Branch.Merged
		if v.Generation == history.Base {
			root = s.Branch.Base
		}
		read = func() (int, int64, bool, error) { return history.ReadFile(root, rel, p, offset) }
	}
	n, size, link, err := read()
	return Content{Data: p[:max(n, 0)], Size: size, Link: link}, err
}
