package pages

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
)

// The bounds of the changes.
const (
	maxChanges     = 2000      // rows of a list
	maxGenerations = 200       // checkpoints, calls and sessions that are offered
	maxContent     = 256 << 10 // bytes of a file with a diff
	maxSteps       = 500       // of a plan
	doTime         = 5 * time.Minute
)

// changesOfAll is the list of agents whose changes can be looked at.
func (s *Site) changesOfAll(ctx context.Context, r *http.Request) (page, error) {
	all, err := s.client.Agents(ctx)
	if err != nil {
		return page{}, err
	}
	all = slices.DeleteFunc(all, func(a api.Agent) bool { return a.ID == "" })
	past, err := s.past(ctx, nil, 0)
	if err != nil {
		return page{}, err
	}
	var data struct {
		Part   []api.Agent
		Listed listed
		Last   map[scope.ID]*api.Past // the session of each that has changed something last, as far as the newest events say
	}
	data.Last = map[scope.ID]*api.Past{}
	for _, p := range slices.Backward(past) {
		if p.Changed > 0 {
			data.Last[scope.ID(p.Agent)] = p
		}
	}
	data.Part, data.Listed, err = listOf(r, all, func(a api.Agent) string { return string(a.ID) })
	return page{Name: "changes", Title: "Changes", Follow: "top", Data: data}, err
}

// chosen are the changes of an agent that a page is about.
type chosen struct {
	Agent scope.ID
	Held  string // "": kept; branch: those of a branch; paths: those that rules hold
	By    string // of kept ones: session, call or checkpoint; "": the last session
	Name  string // its id or name
}

func chosenBy(r *http.Request) (c chosen, err error) {
	if c.Agent, err = scope.ParseID(r.PathValue("agent")); err != nil {
		return c, invalid("agent: %v", err)
	}
	c.Held, c.By, c.Name = r.FormValue("held"), r.FormValue("by"), r.FormValue("name")
	switch {
	case c.Held != "" && c.Held != "branch" && c.Held != "paths",
		c.By != "" && c.By != "session" && c.By != "call" && c.By != "checkpoint", len(c.Name) > 200:
		return c, invalid("no such changes: open them from the page of the agent")
	case c.By == "":
		c.Name = ""
	case c.Name == "":
		c.By = ""
	}
	return c, nil
}

func (c chosen) selection() (sel history.Selection) {
	switch c.By {
	case "session":
		sel.Session = c.Name
	case "call":
		sel.Calls = []string{c.Name}
	case "checkpoint":
		sel.Checkpoint = c.Name
	}
	return sel
}

func (s *Site) historyOf(c chosen) *api.History {
	if c.Held == "paths" {
		return s.client.HeldOf(c.Agent)
	}
	return s.client.HistoryOf(c.Agent)
}

// changesPage is what the template changes-of gets.
type changesPage struct {
	chosen
	Notice      string
	Changes     []history.Change
	More        int
	Conflicts   int
	Nothing     string
	Hash        string // of held changes, or of the plan
	Generations []history.Generation

	Plan  *history.Result // what an undo would do
	Steps int             // of it that are left out
	Shown string          // the path whose diff is shown
	Diff  diff
}

// Kept reports whether the changes are those of a history.
func (c changesPage) Kept() bool { return c.Held == "" }

// changes is the page of the changes of an agent, with the diff of a path, or with the plan of an undo.
func (s *Site) changes(ctx context.Context, r *http.Request) (page, error) {
	c, err := chosenBy(r)
	if err != nil {
		return page{}, err
	}
	data, err := s.changesBy(ctx, c, r.FormValue("path"))
	if err == nil && c.Held == "" && r.FormValue("plan") != "" {
		err = s.plan(ctx, &data)
	}
	if err != nil {
		return page{}, err
	}
	return changesOf(data), nil
}

func changesOf(data changesPage) page {
	return page{Name: "changes-of", Title: "Changes of " + string(data.Agent), Data: data}
}

// changesBy returns the list, those that destroy something first, and the diff of path.
func (s *Site) changesBy(ctx context.Context, c chosen, path string) (changesPage, error) {
	data, h := changesPage{chosen: c}, s.historyOf(c)
	var all []history.Change
	var err error
	if c.Held != "" {
		var held *api.Differences
		if held, err = h.Diff(ctx, nil, true); err == nil {
			all, data.Hash = held.List, held.Hash
		}
	} else {
		if all, data.Nothing, err = h.Changes(ctx, c.selection()); err == nil {
			data.Generations, err = h.Generations(ctx, time.Time{})
			slices.Reverse(data.Generations)
			data.Generations = data.Generations[:min(len(data.Generations), maxGenerations)]
		}
	}
	if err != nil {
		return data, err
	}
	order := map[history.ChangeKind]int{history.Deleted: 1, history.Renamed: 2, history.ModeChanged: 3, history.Changed: 4, history.Added: 5}
	slices.SortStableFunc(all, func(a, b history.Change) int { return cmp.Compare(order[a.Kind], order[b.Kind]) })
	for _, one := range all {
		if one.Conflict != "" {
			data.Conflicts++
		}
		if path != "" && one.Path == path {
			data.Shown = path
			if data.Diff, err = s.contents(ctx, h, one); err != nil {
				return data, err
			}
		}
	}
	if len(all) > maxChanges {
		all, data.More = all[:maxChanges], len(all)-maxChanges
	}
	data.Changes = all
	return data, nil
}

// contents returns the diff of a file.
func (s *Site) contents(ctx context.Context, h *api.History, c history.Change) (d diff, err error) {
	if c.Type != "file" && c.Type != "link" {
		d.Note = "a " + c.Type + " has no diff"
		return d, nil
	}
	var texts [2]string
	for i, v := range []history.Version{c.Old, c.New} {
		if v == (history.Version{}) {
			continue
		}
		var text bytes.Buffer
		got, err := h.Read(ctx, v, maxContent, &text)
		switch {
		case isConflict(err):
			d.Note = "no diff: " + err.Error()
			return d, nil
		case err != nil:
			return d, err
		case got.Size > maxContent:
			d.Note = fmt.Sprintf("no diff: the file has %d bytes, more than %d", got.Size, maxContent)
			return d, nil
		case bytes.IndexByte(text.Bytes(), 0) >= 0 || !utf8.Valid(text.Bytes()):
			d.Note = "no diff: the file is no text"
			return d, nil
		}
		texts[i] = text.String()
	}
	return s.diffOf(c.Path, texts[0], texts[1]), nil
}

// modes says how the mode of a file changes, if that makes a program of it or is all that changes.
func modes(c history.Change) string {
	switch old, now := c.OldMode&0o7777, c.NewMode&0o7777; {
	case c.Kind == history.Deleted || old == now:
		return ""
	case c.Kind == history.Added && (c.Type != "file" || now&0o7111 == 0):
		return ""
	case c.Kind == history.Added:
		return fmt.Sprintf("%04o", now)
	default:
		return fmt.Sprintf("%04o → %04o", old, now)
	}
}

// plan adds what an undo would do.
func (s *Site) plan(ctx context.Context, data *changesPage) error {
	plan, hash, err := s.historyOf(data.chosen).Plan(ctx, data.selection())
	if err != nil {
		return err
	}
	data.Plan, data.Hash = plan, hash
	if n := len(plan.Steps); n > maxSteps {
		plan.Steps, data.Steps = plan.Steps[:maxSteps], n-maxSteps
	}
	return nil
}

// shown returns the page with what a button does.
func (s *Site) shown(ctx context.Context, c chosen, do string) (changesPage, error) {
	data, err := s.changesBy(ctx, c, "")
	if err == nil && do == "undo" && c.Held == "" {
		err = s.plan(ctx, &data)
	}
	return data, err
}

func isConflict(err error) bool {
	var refused *api.Error
	return errors.As(err, &refused) && refused.Kind == api.Conflict
}

// change does what the operator has seen, by its hash: an undo, a commit or a discard. Other changes are shown again.
func (s *Site) change(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), doTime)
	defer cancel()
	c, err := chosenBy(r)
	shown := r.PostFormValue("shown")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(doTime + askTime))
	if err == nil && shown == "" {
		err = invalid("the form does not say what was shown")
	}
	if err != nil {
		s.write(w, r, failed(err))
		return
	}
	h, do, done := s.historyOf(c), r.PostFormValue("do"), ""
	var data changesPage
	if r.PostFormValue("partial") == "" {
		if data, err = s.shown(ctx, c, do); err == nil && data.More+data.Steps > 0 && data.Hash == shown {
			err = invalid("the page does not show all of it: say that you mean it all the same, or use scopefs %s", do)
		}
	}
	switch {
	case err != nil:
	case do == "undo" && c.Held == "":
		var result *history.Result
		if result, err = h.Undo(ctx, c.selection(), shown); err == nil {
			done = fmt.Sprintf("Taken back: %d steps, %d conflicts, %d not kept.", result.Done, len(result.Conflicts), len(result.Unkept))
		}
	case do == "commit" && c.Held != "":
		opt := api.CommitOptions{Hash: shown}
		switch r.PostFormValue("conflicts") {
		case "theirs":
			opt.Theirs = true
		case "ours":
			opt.Ours = true
		case "merge":
			opt.Merge = true
		}
		var result *api.Committed
		if result, err = h.Commit(ctx, opt); err == nil {
			done = fmt.Sprintf("Taken: %d changes. Conflicts: %d.", len(result.Taken), len(result.Conflicts))
		}
	case do == "discard" && c.Held != "":
		var n int
		if n, err = h.Discard(ctx, nil, shown); err == nil {
			done = fmt.Sprintf("Dropped: %d changes.", n)
		}
	default:
		err = invalid("%q is nothing to do with these changes", do)
	}
	stale := isConflict(err)
	switch {
	case stale:
		data, err = s.shown(ctx, c, do)
	case err == nil:
		data, err = s.changesBy(ctx, c, "")
	}
	if err != nil {
		s.write(w, r, failed(err))
		return
	}
	status := http.StatusOK
	if data.Notice = done; stale {
		data.Notice = "Nothing was done: the changes are not those that were shown. These are the ones of now."
		status = http.StatusConflict
	}
	p := changesOf(data)
	p.Status = status
	s.write(w, r, p)
}
