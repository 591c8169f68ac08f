package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/scope"
)

// History is a client of one agent's history. Paths are escaped as in the log: audit.Escape.
type History struct {
	client *Client
	id     scope.ID
	held   bool

	Listing func(done, total int) // is called for each page of a list; nil: nothing is
}

// HistoryOf returns a client of an agent's history.
func (c *Client) HistoryOf(id scope.ID) *History { return &History{client: c, id: id} }

// HeldOf returns a client of what rules hold of an agent's changes.
func (c *Client) HeldOf(id scope.ID) *History { return &History{client: c, id: id, held: true} }

// History sends a request about an agent's history and returns the answer. See fs/history for both.
func (c *Client) History(ctx context.Context, id scope.ID, request json.RawMessage) (json.RawMessage, error) {
	return fetch[json.RawMessage](ctx, c, http.MethodPost, "/v1/agents/"+string(id)+"/history", request)
}

func (h *History) request(ctx context.Context, r query.Request) (*query.Reply, error) {
	r.Held = h.held
	return fetch[*query.Reply](ctx, h.client, http.MethodPost, "/v1/agents/"+string(h.id)+"/history", r)
}

// pages sends a request for a list until it has all entries. It returns the first reply as well.
func (h *History) pages(ctx context.Context, r query.Request) (*query.Reply, []query.Entry, error) {
	var first *query.Reply
	var all []query.Entry
	for first == nil || len(all) < first.Total {
		r.Offset = int64(len(all))
		reply, err := h.request(ctx, r)
		if err != nil {
			return first, all, err
		}
		if first == nil {
			first = reply
		}
		if len(reply.Entries) == 0 {
			break // another view has made the list again, and it is shorter
		}
		all = append(all, reply.Entries...)
		if h.Listing != nil {
			h.Listing(len(all), first.Total)
		}
	}
	return first, all, nil
}

// Changes returns what the selected changes have done, sorted by path. Without one it returns why.
func (h *History) Changes(ctx context.Context, sel history.Selection) (list []history.Change, nothing string, err error) {
	first, entries, err := h.pages(ctx, query.Request{Changes: &sel})
	if err != nil {
		return nil, "", err
	}
	return changesOf(entries), first.Nothing, nil
}

// Plan returns what an undo of the selected changes would do, and its hash.
func (h *History) Plan(ctx context.Context, sel history.Selection) (r *history.Result, hash string, err error) {
	return h.result(ctx, query.Request{Plan: &sel})
}

// Undo takes the selected changes back. It goes on if ctx ends: see Cancel. With the hash of a plan it does what that plan says, and
// fails with Conflict if that is not what an undo would do now; "": any.
func (h *History) Undo(ctx context.Context, sel history.Selection, shown string) (*history.Result, error) {
	r, _, err := h.result(ctx, query.Request{Undo: &sel, Shown: shown})
	return r, err
}

// NothingError reports that a selection means no change.
type NothingError struct{ Why string }

func (e *NothingError) Error() string { return e.Why }

// stale returns the error of a reply for which nothing was done.
func stale(reply *query.Reply) error {
	if !reply.Stale {
		return nil
	}
	return &Error{Kind: Conflict, Text: "nothing was done: the changes are not those that were shown: look at them again"}
}

func (h *History) result(ctx context.Context, r query.Request) (*history.Result, string, error) {
	first, entries, err := h.pages(ctx, r)
	if first == nil {
		return nil, "", err
	}
	if err := stale(first); err != nil {
		return nil, "", err
	}
	if first.Nothing != "" {
		return nil, "", &NothingError{first.Nothing}
	}
	result := first.Result
	if result == nil {
		result = &history.Result{}
	}
	result.Plan = history.Plan{Steps: []history.Step{}, Conflicts: []history.Problem{}, Unkept: []history.Problem{}}
	for _, e := range entries {
		switch {
		case e.Step != nil:
			result.Steps = append(result.Steps, *e.Step)
		case e.Conflict != nil:
			result.Conflicts = append(result.Conflicts, *e.Conflict)
		case e.Unkept != nil:
			result.Unkept = append(result.Unkept, *e.Unkept)
		}
	}
	if err != nil {
		err = fmt.Errorf("%d steps are done, and the list of them is incomplete: %w", result.Done, err)
	}
	return result, first.Hash, err
}

// Progress returns how many steps of the undo that runs are done. total is 0 while it is planned.
func (h *History) Progress(ctx context.Context) (done, total int, err error) {
	reply, err := h.request(ctx, query.Request{Progress: true})
	if err != nil {
		return 0, 0, err
	}
	return reply.Done, reply.Total, nil
}

// Cancel ends the undo that runs. It takes back what it has done.
func (h *History) Cancel(ctx context.Context) error {
	_, err := h.request(ctx, query.Request{Cancel: true})
	return err
}

// Checkpoint begins a checkpoint and returns its id.
func (h *History) Checkpoint(ctx context.Context, name string) (string, error) {
	reply, err := h.request(ctx, query.Request{Checkpoint: &name})
	if err != nil {
		return "", err
	}
	return reply.Checkpoint, nil
}

// Generations returns the generations since a time, the oldest first.
func (h *History) Generations(ctx context.Context, since time.Time) ([]history.Generation, error) {
	_, entries, err := h.pages(ctx, query.Request{Generations: &since})
	list := make([]history.Generation, 0, len(entries))
	for _, e := range entries {
		if e.Generation != nil {
			list = append(list, *e.Generation)
		}
	}
	return list, err
}

// Newest returns the last generation that a selection means; without one, why not. See [history.Store.Newest].
func (h *History) Newest(ctx context.Context, sel history.Selection) (g *history.Generation, nothing string, err error) {
	reply, err := h.request(ctx, query.Request{Newest: &sel})
	switch {
	case err != nil:
		return nil, "", err
	case len(reply.Entries) == 0:
		return nil, cmp.Or(reply.Nothing, "nothing was changed"), nil
	}
	return reply.Entries[0].Generation, "", nil
}

// Before returns the version that a file had before the selected changes.
func (h *History) Before(ctx context.Context, path string, sel history.Selection) (history.Version, error) {
	sel.Paths = []string{path}
	reply, err := h.request(ctx, query.Request{Before: &sel})
	if err != nil || reply.Version == nil {
		return history.Version{}, err
	}
	return *reply.Version, nil
}

// Content describes a content of the history.
type Content struct {
	Size int64
	Link bool // it is the text of a symbolic link
}

// Read writes a content of at most so many bytes to w. It writes nothing of a larger one. Without a bound, most is -1. A content that
// has not the Sum of its version is a Conflict, after it is written.
func (h *History) Read(ctx context.Context, v history.Version, most int64, w io.Writer) (Content, error) {
	reply, err := h.request(ctx, query.Request{Read: &v})
	if err != nil {
		return Content{}, err
	}
	return h.readOn(ctx, v, reply.Content, most, w)
}

// readOn is Read of a content whose first part is known.
func (h *History) readOn(ctx context.Context, v history.Version, part query.Content, most int64, w io.Writer) (Content, error) {
	c := Content{Size: part.Size, Link: part.Link}
	if most >= 0 && c.Size > most {
		return c, nil
	}
	sum := sha256.New()
	for read := int64(0); ; {
		if _, err := w.Write(part.Data); err != nil {
			return c, err
		}
		sum.Write(part.Data)
		switch read += int64(len(part.Data)); {
		case v.Sum != "" && read >= c.Size && hex.EncodeToString(sum.Sum(nil)) != v.Sum:
			return c, &Error{Kind: Conflict, Text: "the file has changed since the changes were listed"}
		case read >= c.Size:
			return c, nil
		case len(part.Data) == 0:
			return c, io.ErrUnexpectedEOF // it has become shorter
		}
		reply, err := h.request(ctx, query.Request{Read: &v, Offset: read})
		if err != nil {
			return c, err
		}
		part = reply.Content
	}
}

// Text is a content in memory.
type Text struct {
	Content
	Text []byte // nothing of a content that is too large
}

// maxReads bounds the versions of one request. A view takes requests of 128 KiB, of which the path of the last one may need a half.
const (
	maxReads     = 256
	maxReadBytes = 32 << 10
)

// Texts reads contents in the order of a list, many with one request. It yields of each what Read returns.
func (h *History) Texts(ctx context.Context, list []history.Version, most int64) iter.Seq2[Text, error] {
	return func(yield func(Text, error) bool) {
		for len(list) > 0 {
			n, size := 0, 0
			for n < min(len(list), maxReads) && (n == 0 || size < maxReadBytes) {
				text, _ := json.Marshal(list[n]) // it has strings and numbers
				size += len(text)
				n++
			}
			reply, err := h.request(ctx, query.Request{Reads: list[:n]})
			if err == nil && (len(reply.Contents) == 0 || len(reply.Contents) > n) {
				err = fmt.Errorf("%d contents were answered, of %d", len(reply.Contents), n)
			}
			if err != nil {
				for range list {
					if !yield(Text{}, err) {
						return
					}
				}
				return
			}
			for i, part := range reply.Contents {
				var text bytes.Buffer
				var c Content
				if err = nil; part.Why != "" {
					err = errors.New(part.Why)
				} else {
					c, err = h.readOn(ctx, list[i], part, most, &text)
				}
				if !yield(Text{c, text.Bytes()}, err) {
					return
				}
			}
			list = list[len(reply.Contents):]
		}
	}
}
