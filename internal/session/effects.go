package session

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/effect"
	"github.com/scopefs/scopefs/scope/effect/prose"
	"github.com/scopefs/scopefs/scope/protect"
	"github.com/scopefs/scopefs/tools"
)

// watches are the calls and commands whose effects somebody waits for. The zero value is ready.
type watches struct {
	mu  sync.Mutex // nothing waits under it
	all map[string]*watched
}

// watched is what is known of the effects of a call, or of a sandbox, without the view.
type watched struct {
	touched bool       // the view has asked who a process of it is: it may have changed something
	roots   []scope.ID // the same of the views of roots
	refused []effect.Refusal
	bytes   int // of their paths
	more    int // refusals
}

// The bounds of watched.refused, and of its paths in bytes: the client of a run reads all effects in one line.
const (
	maxRefused      = 8
	maxRefusedBytes = 8 << 10
)

func (w *watches) begin(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[string]*watched{}
	}
	w.all[id] = &watched{}
}

// take returns what a watch has seen since the last take, and begins it anew unless it ends. Of what nobody watches everything may
// have happened.
func (w *watches) take(id string, ends bool) watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.all[id]
	switch {
	case seen == nil:
		return watched{touched: true}
	case ends:
		delete(w.all, id)
	default:
		w.all[id] = &watched{}
	}
	return *seen
}

// each calls do for the watches of an origin: that of its call and that of its sandbox.
func (w *watches) each(from origin, do func(*watched)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range []string{from.call, from.session} {
		if one := w.all[id]; one != nil {
			do(one)
		}
	}
}

// touch notes that a process of an origin is about to change something.
func (w *watches) touch(from origin) {
	w.each(from, func(one *watched) { one.touched = true })
}

// touchRoot is touch for the view of a root.
func (w *watches) touchRoot(from origin, root scope.ID) {
	w.each(from, func(one *watched) {
		if !slices.Contains(one.roots, root) {
			one.roots = append(one.roots, root)
		}
	})
}

// refuse notes an operation that the view has refused.
func (w *watches) refuse(from origin, e audit.Event) {
	r := effect.Refusal{Path: e.Path, Op: e.Op, Rule: e.Rule, Host: e.RuleKind == string(scope.KindProtect)}
	w.each(from, func(one *watched) {
		switch same := func(o effect.Refusal) bool { return o.Path == r.Path }; {
		case !changing(e.Op) && e.Errno != "EACCES", slices.ContainsFunc(one.refused, same):
		case len(one.refused) == maxRefused, one.bytes+len(r.Path) > maxRefusedBytes:
			one.more++
		default:
			one.refused, one.bytes = append(one.refused, r), one.bytes+len(r.Path)
		}
	})
}

// changing reports whether an operation would have changed something. What was refused of others says what a rule hides, unless the
// client got EACCES: it knows the path.
func changing(op string) bool {
	for o := scope.OpOpenWrite; o < scope.OpIoctl; o++ {
		if o.String() == op {
			return true
		}
	}
	return false
}

// effectsTime bounds how long an answer waits for its effects.
const effectsTime = 2 * time.Second

// effectsOf has a view list the effects of a work. client is the session that gets them; "": the operator.
func effectsOf(ctx context.Context, v View, w history.Work, client string) (e *effect.Effects, until uint64) {
	unknown := func(why string) (*effect.Effects, uint64) {
		return &effect.Effects{Unknown: "what changed is not known: " + why}, 0
	}
	ctx, cancel := context.WithTimeout(ctx, effectsTime)
	defer cancel()
	reply, err := inquire(ctx, v, query.Request{Effects: &w, Client: client})
	switch {
	case ctx.Err() != nil:
		return unknown(fmt.Sprintf("the view did not answer within %v", effectsTime))
	case err != nil: // of the view, or of the connection to it
		return unknown(audit.Escape(tools.Clip(err.Error(), 200)))
	case reply.Effects == nil:
		return unknown("the view's answer lacks it")
	}
	e = reply.Effects
	e.Unknown, e.Direct = "", false
	for _, o := range e.Listed() {
		if !slices.Contains(o.Marks, effect.Read) && protectedNames()(strings.TrimSuffix(o.Path, "/")) {
			o.Marks = append(o.Marks, effect.Read)
		}
	}
	return e, reply.Until
}

// inquire sends a request about the history of a view, or of an agent, which has what is held as well.
func inquire(ctx context.Context, v interface {
	History(context.Context, json.RawMessage) (json.RawMessage, error)
}, r query.Request) (reply query.Reply, err error) {
	request, err := json.Marshal(r)
	if err != nil {
		return reply, err
	}
	answer, err := v.History(ctx, request)
	if err == nil {
		err = json.Unmarshal(answer, &reply) // the view may answer anything
	}
	return reply, err
}

// heldNow returns said, which is heldInRun, with the number of changes that agents hold, unless that takes too long.
func heldNow(ctx context.Context, all []*Agent, said string) string {
	ctx, cancel := context.WithTimeout(ctx, effectsTime)
	defer cancel()
	n := 0
	for _, of := range all {
		reply, err := inquire(ctx, of, query.Request{Diff: &query.Branch{}})
		if err != nil {
			return said
		}
		n += reply.Total
	}
	switch n {
	case 0:
		return "nothing is held"
	case 1:
		return "1 change is held" + strings.TrimPrefix(said, "changes are held")
	}
	return fmt.Sprint(n, " ", said)
}

// protectedNames returns what covers every name of the lists for protect.
var protectedNames = sync.OnceValue(func() func(rel string) bool {
	var patterns []string
	for _, list := range protect.Builtin() {
		patterns = append(patterns, list.Paths...)
	}
	covers, err := scope.Covering(patterns)
	if err != nil {
		panic(err) // a test reads each of them
	}
	return covers
})

// heldInCall is what an agent reads of held changes.
const heldInCall = "changes are held and not listed here: diff lists them"

// heldInRun is what the operator of a run reads of them, for all its directories.
func heldInRun(v View) string {
	of := ""
	if def := v.Definition(); def.Branch != "" && def.HomeID() == def.Name {
		of = " " + string(def.Name)
	}
	return "changes are held: scopefs diff" + of + ", commit" + of + " or discard" + of
}

// unlisted returns effects that say why the changes in a view cannot be listed; nil: they can. held says it of held ones.
func unlisted(v View, held string) *effect.Effects {
	switch {
	case v.Definition().View.Changes == agents.ChangesHeld:
		return &effect.Effects{Unknown: held}
	case !v.Keeps():
		return &effect.Effects{Unknown: "what changed is not known: this view keeps no history", Direct: v.Unkept() == ""}
	}
	return nil
}

// watch watches one call of a client: see tools.Gate.
type watch struct {
	*client
	env tools.Env
}

func (c *client) watch(env tools.Env) tools.Watch {
	c.agent.watches.begin(env.Call)
	return &watch{c, env}
}

func (w *watch) End() { w.agent.watches.take(w.env.Call, true) }

// Effects implements tools.Watch.
func (w *watch) Effects(ctx context.Context, earlier tools.Begun) (e *effect.Effects, silent bool) {
	c, tool, began := w.client, w.env.Begun.Tool, w.env.Begun.At
	v := c.agent.View()
	if v == nil {
		return nil, false
	}
	why := unlisted(v, heldInCall)
	if c.held != nil {
		why = &effect.Effects{Unknown: "changes wait for the caller, who commits them"}
	}
	switch {
	case earlier.Call == "" && (tool == "process_read" || tool == "process_stop"): // a list
		return nil, false
	case why != nil:
		return why, c.said()
	}
	seen := c.agent.watches.take(w.env.Call, false)
	seen.touched = seen.touched || w.env.Resumed || earlier.Call != ""
	work := history.Work{Call: w.env.Call, Began: began}
	if earlier.Call != "" {
		work = history.Work{Call: earlier.Call, Began: earlier.At}
	}
	if server, ok := strings.CutPrefix(tool, "mcp:"); ok {
		server, _, _ = strings.Cut(server, ":")
		box := c.servers.box(server)
		if box == "" {
			return nil, false
		}
		work, seen.touched = history.Work{Session: box, Began: began, After: uint64(began.UnixNano())}, true
	}
	e, until := &effect.Effects{Nothing: true}, uint64(0)
	if seen.touched {
		work.After = max(work.After, c.told.of(work.Call))
		e, until = effectsOf(ctx, v, work, c.name)
		c.told.set(work.Call, until)
	}
	for _, o := range e.Listed() {
		o.Path, o.From = plain(o.Path), plain(o.From)
	}
	c.rootEffects(ctx, e, seen.roots, work)
	e.Refused, e.RefusedLeftOut = seen.refused, seen.more
	e.Held = v.Definition().View.PolicySpec().Holds()
	return e, c.once && e.Nothing && len(e.Refused) == 0
}

// rootEffects adds the effects of a work in the views of roots.
func (c *client) rootEffects(ctx context.Context, e *effect.Effects, roots []scope.ID, work history.Work) {
	for _, id := range roots {
		of, err := c.agent.Member(id)
		if err != nil || of.View() == nil {
			continue
		}
		v, key := of.View(), work.Call+" "+string(id)
		root := unlisted(v, heldInCall)
		if root == nil {
			var until uint64
			work.After = c.told.of(key)
			root, until = effectsOf(ctx, v, work, c.name)
			c.told.set(key, until)
			for _, o := range root.Listed() {
				o.Path, o.From = plain(o.Path), plain(o.From)
			}
		}
		addRoot(e, v.Definition().Dir, root)
	}
}

// addRoot adds to e the effects in a root, unless there are none, the operator has said that they are not kept, or e says of all directories why
// they are not known. Its paths begin with dir.
func addRoot(e *effect.Effects, dir string, root *effect.Effects) {
	if root.Counts.Sum() == 0 && (root.Unknown == e.Unknown || root.Unknown == "" || root.Direct) {
		return
	}
	if e.Roots == nil {
		e.Roots = map[string]effect.Effects{}
	}
	e.Roots[dir] = effect.Effects{Counts: root.Counts, Unknown: root.Unknown}
	e.Nothing = e.Nothing && root.Counts.Sum() == 0
	room := effect.Max - len(e.Listed())
	own := e.Lists()
	for i, l := range root.Lists() {
		for _, o := range *l.Objects {
			if room--; room < 0 {
				e.LeftOut++
				continue
			}
			if o.Path = dir + "/" + o.Path; o.From != "" {
				o.From = dir + "/" + o.From
			}
			*own[i].Objects = append(*own[i].Objects, o)
		}
		*own[i].Count += *l.Count
	}
	e.LeftOut += root.LeftOut
	for program, n := range root.By {
		if e.By == nil {
			e.By = map[string]int{}
		}
		if _, known := e.By[program]; known || len(e.By) < effect.Max {
			e.By[program] += n
		}
	}
}

// plain returns a path without the log's escapes.
func plain(rel string) string {
	if name, err := audit.Unescape(rel); err == nil {
		return name
	}
	return rel
}

// said reports whether an answer of the session has said before why its changes are not listed, or is for a person who runs one
// command.
func (c *client) said() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.unlisted
	c.unlisted = true
	return was || c.once
}

// told has the last change of each call that an answer has listed, for the next answer about its processes. The zero value is ready.
type told struct {
	mu    sync.Mutex
	until map[string]uint64
}

// maxTold bounds told. Of a call that is forgotten the next answer lists everything.
const maxTold = 256

func (t *told) of(call string) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.until[call]
}

func (t *told) set(call string, until uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.until == nil || len(t.until) == maxTold {
		t.until = map[string]uint64{}
	}
	t.until[call] = max(t.until[call], until)
}

// Watch begins to watch what a sandbox is refused: see Effects.
func (b *Sandbox) Watch() { b.agent.watches.begin(b.Name) }

// Effects returns what a sandbox of the agent has changed, for the operator; nil: that was said before, or the sandbox has no view
// of this daemon. It ends Watch.
func (b *Sandbox) Effects(ctx context.Context) *effect.Effects {
	seen := b.agent.watches.take(b.Name, true)
	if b.view == nil || b.view.Unkept() != "" && len(b.roots) == 0 {
		return nil
	}
	e, held, said := b.effectsIn(ctx, b.view), []*Agent{b.agent}, heldInRun(b.view)
	e.Direct = e.Direct || b.view.Unkept() != "" // a line has said so
	for _, id := range b.roots {
		of, err := b.agent.Member(id)
		if err != nil || of.View() == nil {
			continue
		}
		root := b.effectsIn(ctx, of.View())
		if addRoot(e, audit.Escape(of.View().Definition().Dir), root); root.Unknown == said {
			held = append(held, of)
		}
	}
	if e.Unknown == said {
		e.Unknown = heldNow(ctx, held, said)
	}
	logged := audit.Event{Event: audit.KindSandbox, Agent: string(b.agent.id), Session: b.Name, Op: "changes", Outcome: "listed"}
	if logged.Changed, logged.Effects = prose.Logged(e); logged.Changed != nil {
		b.agent.Event(logged)
	}
	if e.Unknown != "" && e.Counts.Sum() == 0 && len(e.Roots) == 0 {
		return e
	}
	e.Refused, e.RefusedLeftOut = seen.refused, seen.more
	for i := range e.Refused {
		e.Refused[i].Path = audit.Escape(e.Refused[i].Path)
	}
	return e
}

// effectsIn returns what the sandbox has changed in one view.
func (b *Sandbox) effectsIn(ctx context.Context, v View) *effect.Effects {
	if why := unlisted(v, heldInRun(b.view)); why != nil {
		return why
	}
	e, _ := effectsOf(ctx, v, history.Work{Session: b.Name, Began: b.began}, "")
	return e
}
