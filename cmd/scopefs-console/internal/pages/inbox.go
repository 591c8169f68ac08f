package pages

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/access"
	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/sides"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/tools/approvals"
)

// The bounds of the inbox.
const (
	maxRows      = 600      // of a diff
	maxArguments = 64 << 10 // bytes of arguments that are shown
	maxBatch     = approvals.MaxInbox

	colourTime = 150 * time.Millisecond // that a page waits for the colours of its diffs
)

// item is a request that waits, with what it would do.
type item struct {
	approvals.Approval
	Agents  []string // the chain of callers, from the first
	Command string
	Host    string
	Where   string // the paths of the call, with what they lead to
	Diff    diff
	Text    string                      // the arguments that nothing else shows, or that a diff of the agent's sandbox shows
	Shown   bool                        // by the diff, if that is right
	More    int                         // bytes of the command and the arguments that are left out
	New     bool                        // it waits in place of one that the operator has decided about
	Amend   struct{ Name, Kind string } // the rule that would allow it; zero: none
}

// diff is a unified diff on two sides.
type diff struct {
	Rows []sides.Row
	Left int // lines that are left out
	Cut  int // bytes that the daemon has left out
	Note string
}

// inboxPage is what the template inbox gets.
type inboxPage struct {
	Items     []item
	More      int
	Proposals []proposal
	Decided   []approval
	Ended     []approvals.Update
	Notices   []string
	Lost      bool // the daemon does not say what waits
	Push      api.PushReply
}

// inbox is the page of what waits.
func (s *Site) inbox(ctx context.Context, r *http.Request) (page, error) {
	return s.inboxOf(ctx, nil, r.FormValue("new"))
}

func (s *Site) inboxOf(ctx context.Context, notices []string, fresh string) (page, error) {
	got, err := s.client.Inbox(ctx)
	if err != nil {
		return page{}, err
	}
	data := inboxPage{Notices: notices, More: got.More, Decided: got.Decided, Ended: got.Ended}
	if data.Push, err = s.push(ctx); err != nil {
		return page{}, err
	}
	if data.Proposals, err = s.proposals(ctx); err != nil {
		return page{}, err
	}
	until := time.Now().Add(colourTime)
	for _, p := range got.Waits {
		if p.Cut {
			if p.Approval, err = s.client.Approval(ctx, p.ID); err != nil || p.State != approvals.Waits { // decided meanwhile
				continue
			}
		}
		one := itemOf(p.Approval)
		one.New = p.ID == fresh
		s.lexers.Rows(until, p.Path, one.Diff.Rows)
		data.Items = append(data.Items, one)
	}
	slices.SortStableFunc(data.Items, func(a, b item) int { return cmp.Compare(rank(b.New), rank(a.New)) })
	return page{Name: "inbox", Title: "Inbox", Follow: "approvals", Data: data}, nil
}

func rank(first bool) int {
	if first {
		return 1
	}
	return 0
}

// itemOf returns a request with what it would do, each part of it once.
func itemOf(p approval) item {
	one := item{Approval: p, Agents: strings.Split(p.Whose(), ">")}
	rest := p.Arguments
	switch p.Kind {
	case approvals.KindHost:
		one.Host, rest = p.Subject, without(rest, "host", "port")
	case approvals.KindCommand:
		if command, ok := p.Text("command"); ok {
			one.Command, rest = one.cut(command), without(rest, "command")
		}
	}
	if p.Path != "" {
		to, _ := p.Text("to")
		one.Where = p.About(to)
	}
	if p.Changes != nil {
		one.Diff.Rows, one.Diff.Left = sides.Rows(p.Changes.Diff, maxRows)
		one.Diff.Cut, one.Diff.Note = p.Changes.Cut, p.Changes.Note
		if p.Changes.Diff == "" {
			one.Diff.Rows = nil
		} else {
			one.Shown = p.Changes.Cut == 0 && one.Diff.Left == 0
		}
	}
	if len(rest) > 0 && string(rest) != "{}" {
		var text bytes.Buffer
		if err := json.Indent(&text, rest, "", "  "); err != nil {
			text.Reset()
			text.Write(rest)
		}
		one.Text = one.cut(text.String())
	}
	if p.Chain == "" && (one.Host != "" && p.Tool == "network" || p.Kind != approvals.KindHost && !strings.Contains(p.Tool, ":")) {
		one.Amend.Name, one.Amend.Kind = p.Tool, "tool"
		if one.Host != "" {
			one.Amend.Name, one.Amend.Kind = one.Host, "host"
		}
	}
	return one
}

// cut returns the beginning of a text, and counts what it leaves out.
func (i *item) cut(text string) string {
	if len(text) <= maxArguments {
		return text
	}
	i.More += len(text) - maxArguments
	return strings.ToValidUTF8(text[:maxArguments], "")
}

// Partial reports whether the page leaves out a part of what the request would do. To approve it takes one more word.
func (i item) Partial() bool {
	return i.More > 0 || i.Binds() && (i.Diff.Cut > 0 || i.Diff.Left > 0)
}

// without returns an object without some of its members.
func without(object json.RawMessage, names ...string) json.RawMessage {
	var all map[string]json.RawMessage
	if json.Unmarshal(object, &all) != nil {
		return object
	}
	for _, name := range names {
		delete(all, name)
	}
	text := bytes.Buffer{}
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	if out.Encode(all) != nil {
		return object
	}
	return bytes.TrimSpace(text.Bytes())
}

// Patterns returns what a pattern of a request is matched against.
func (i item) Patterns() string {
	switch i.Kind {
	case approvals.KindCommand:
		return "of commands, such as git status *"
	case approvals.KindPath:
		return "of paths, such as src/**"
	case approvals.KindHost:
		return "HOST:PORT, such as *.example.org:443"
	}
	return "** for all calls of the tool"
}

// Binds reports whether a part of the request's changes can be approved.
func (i item) Binds() bool { return i.Content != "" && i.Path == "" }

// Stands reports whether a standing approval can cover the request.
func (i item) Stands() bool { return i.Context == nil && i.Envelope == nil && !i.Binds() }

// decide makes a decision about one request, and shows the inbox.
func (s *Site) decide(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	if err := r.ParseForm(); err != nil {
		s.write(w, r, failed(invalid("the form: %v", err)))
		return
	}
	shown := r.PostForm.Get("shown")
	if shown == "" {
		s.write(w, r, failed(invalid("the form does not say what was shown")))
		return
	}
	how := api.DecideRequest{Shown: shown, As: access.Of(r.Context()).As()}
	s.decided(ctx, w, r, []string{r.PathValue("id")}, []error{s.decideOne(ctx, r.PathValue("id"), r.PostForm, how)})
}

func (s *Site) decideOne(ctx context.Context, id string, form url.Values, how api.DecideRequest) error {
	if do := form.Get("do"); do != "deny" && form.Get("partial") == "" {
		p, err := s.client.Approval(ctx, id)
		if err != nil {
			return err
		}
		if p.State == approvals.Waits && itemOf(p).Partial() {
			return invalid("the page does not show all of it: say that you approve it all the same, or use scopefs approvals")
		}
	}
	var err error
	switch do := form.Get("do"); do {
	case "deny":
		how.Reason = form.Get("reason")
		_, err = s.client.Deny(ctx, id, how)
		return err
	case "once":
		if form.Get("narrow") != "" {
			how.Scopes = append([]string{}, form["scope"]...)
		}
		how.Paths = strings.Fields(form.Get("paths"))
	case "session":
		how.Standing = &approvals.Terms{Session: true}
	case "pattern":
		how.Standing = &approvals.Terms{Pattern: strings.TrimSpace(form.Get("pattern"))}
		if how.Standing.Pattern == "" {
			return invalid("the pattern is empty: write one, or approve the request alone")
		}
		switch length := form.Get("for"); length {
		case "session":
			how.Standing.Session = true
		case "always":
		default:
			if how.Standing.For, err = time.ParseDuration(length); err != nil || how.Standing.For <= 0 {
				return invalid("%q is no time", length)
			}
		}
	default:
		return invalid("%q is no decision", do)
	}
	_, err = s.client.Approve(ctx, id, how)
	return err
}

// batch decides about the requests that the operator has selected: ID HASH, each.
func (s *Site) batch(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	if err := r.ParseForm(); err != nil {
		s.write(w, r, failed(invalid("the form: %v", err)))
		return
	}
	selected := r.PostForm["item"]
	do := r.PostForm.Get("do")
	if len(selected) == 0 || len(selected) > maxBatch || do != "once" && do != "deny" {
		s.write(w, r, failed(invalid("select requests, at most %d, and approve or deny them", maxBatch)))
		return
	}
	ids, errs := make([]string, len(selected)), make([]error, len(selected))
	for i, one := range selected {
		id, hash, _ := strings.Cut(one, " ")
		if ids[i] = id; hash == "" {
			errs[i] = invalid("the form does not say what was shown")
			continue
		}
		errs[i] = s.decideOne(ctx, id, url.Values{"do": {do}, "reason": {r.PostForm.Get("reason")}},
			api.DecideRequest{Shown: hash, As: access.Of(r.Context()).As()})
	}
	s.decided(ctx, w, r, ids, errs)
}

// decided opens the inbox again. What was not decided as asked is on it.
func (s *Site) decided(ctx context.Context, w http.ResponseWriter, r *http.Request, ids []string, errs []error) {
	var notices []string
	fresh, status := "", http.StatusBadRequest
	for i, err := range errs {
		refused, ok := errors.AsType[*api.Error](err)
		switch {
		case err == nil:
		case ok && refused.Kind == api.Conflict && refused.Outcome == approvals.Changed && api.ApprovalOf(refused) != nil:
			fresh, status = api.ApprovalOf(refused).ID, http.StatusConflict
			notices = append(notices,
				fmt.Sprintf("Not approved: request %s has changed since it was shown. This is what waits now: look at it again.", ids[i]))
		case ok && refused.Kind == api.Conflict:
			status = http.StatusConflict
			notices = append(notices, "Not done: "+refused.Text)
		default:
			notices = append(notices, fmt.Sprintf("Not done about %s: %v", ids[i], err))
		}
	}
	if notices == nil {
		http.Redirect(w, r, s.root+"/inbox", http.StatusSeeOther)
		return
	}
	s.answer(ctx, w, r, status, notices, fresh)
}

// answer writes the inbox with notices of what a form did.
func (s *Site) answer(ctx context.Context, w http.ResponseWriter, r *http.Request, status int, notices []string, fresh string) {
	p, err := s.inboxOf(ctx, notices, fresh)
	if err != nil { // the notices say what is known about the decision
		p = page{Name: "inbox", Title: "Inbox", Follow: "approvals", Data: inboxPage{Notices: append(notices, err.Error()), Lost: true}}
		status = http.StatusBadGateway
	}
	p.Status = status
	s.write(w, r, p)
}
