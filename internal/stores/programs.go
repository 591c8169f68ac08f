package stores

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
	"github.com/scopefs/scopefs/tools/upstream"
)

const (
	// declareTime bounds how long a call or a list of tools waits for a program's
	// declaration. The program may start for longer.
	declareTime = 5 * time.Second

	programTime = 30 * time.Second // the default of a call

	atOnce = 16 // calls of one program; an agent has half of them
)

// programKind is the kind of a store that is a program.
const programKind = "program"

// The keys of _meta. The first two are of a tool's declaration, the last one is of a call.
const (
	metaResources = "scopefs/resources"
	metaResults   = "scopefs/results"
	metaAgent     = "scopefs/agent"
)

// An Exec starts the command of a program in a sandbox of its own, which ends with the
// command. The end of ctx kills the command.
type Exec func(ctx context.Context, store string, p *config.StoreProgram, c sandbox.Command) (*sandbox.Process, error)

// programs are the stores that are programs.
type programs struct {
	exec    Exec // nil: this process starts none
	up      *upstream.Upstream
	all     map[string]*program
	changed func() // a program has declared its tools
}

// program is a store that is a program.
type program struct {
	name   string
	config *config.StoreProgram
	of     *programs
	turns  tools.Hints // with Turns alone

	mu       sync.Mutex
	holds    *declaration        // what it declared first, or the operator has accepted; nil: it has declared nothing
	proposed *declaration        // what it declares in place of that; nil: nothing else
	denied   string              // the hash of the declaration that the operator denied last
	secrets  []credential.Secret // of its last start
}

// declaration is what a program declares at a time.
type declaration struct {
	tools      map[string]*tools.Tool // by name
	wrong      error                  // of tools that it does not declare, or not well
	text, hash string                 // of what it declares of its tools
}

// programs adds the stores that are programs.
func (s *Stores) addPrograms(config map[string]*config.StoreProgram, exec Exec) {
	if len(config) == 0 {
		return
	}
	all := &programs{exec: exec, all: map[string]*program{}, changed: func() {
		if s.OnDeclare != nil {
			s.OnDeclare()
		}
	}}
	specs := map[string]upstream.Spec{}
	for name, c := range config {
		all.all[name] = &program{name: name, config: c, of: all, turns: tools.Hints{Turns: tools.NewTurns(atOnce, atOnce/2)}}
		timeout := cmp.Or(c.Timeout, programTime)
		specs[name] = upstream.Spec{Command: c.Command[0], Args: c.Command[1:], Env: c.Env, Timeout: timeout, Blind: true}
	}
	all.up = upstream.New(all, func() map[string]upstream.Spec { return specs })
	s.programs = all
	for _, name := range slices.Sorted(maps.Keys(config)) {
		p := all.all[name]
		var list []tools.Tool
		for _, tool := range p.config.Tools {
			list = append(list, tools.Late(tool, func() *tools.Tool { return p.declared(tool) },
				func(ctx context.Context) (*tools.Tool, error) { return p.wait(ctx, tool) }))
		}
		s.add(store{name: name, kind: programKind, tools: list, check: p.check})
		s.tools = append(s.tools, list...)
	}
}

// Declare waits until the programs have declared their tools, for 5 s at most, and starts
// those that do not run.
func (s *Stores) Declare(ctx context.Context) {
	if s == nil || s.programs == nil || s.programs.exec == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, declareTime)
	defer cancel()
	var all sync.WaitGroup
	for _, p := range s.programs.all {
		all.Go(func() { _ = p.pin(ctx) }) // the error is that of the program's calls, and of scopefs stores
	}
	all.Wait()
}

// Exec starts a program for its upstream.
func (all *programs) Exec(ctx context.Context, name string, c sandbox.Command) (*sandbox.Process, error) {
	p := all.all[name]
	if p == nil || all.exec == nil {
		return nil, errors.New("the daemon alone starts it")
	}
	env := map[string]string{}
	maps.Copy(env, c.Env)
	var secrets []credential.Secret
	for variable, from := range p.config.Credentials {
		secret, err := from.Read(ctx)
		if err != nil {
			return nil, fmt.Errorf("credential %s: %w", variable, err)
		}
		env[variable], secrets = secret.Reveal(), append(secrets, secret)
	}
	p.mu.Lock()
	p.secrets = secrets
	p.mu.Unlock()
	c.Env, c.Lasting = env, true
	return all.exec(ctx, name, p.config, c)
}

// declared returns a tool as the program has declared it; nil if it has not.
func (p *program) declared(tool string) *tools.Tool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds == nil {
		return nil
	}
	return p.holds.tools[tool]
}

// wait returns a tool as the program declares it. The error is for an agent.
func (p *program) wait(ctx context.Context, tool string) (*tools.Tool, error) {
	ctx, cancel := context.WithTimeout(ctx, declareTime)
	defer cancel()
	err := p.pin(ctx)
	if t := p.declared(tool); t != nil {
		return t, nil
	}
	if err == nil {
		err = errors.New("the program does not declare it")
	}
	return nil, p.unavailable(err)
}

// unavailable returns an agent's error for what the operator alone may know.
func (p *program) unavailable(cause error) *tools.Error {
	return tools.Errorf(tools.Unavailable, "the store %s does not work", p.name).
		Suggest("try again; if it stays so, ask the operator: scopefs stores has the reason").Because(errors.New(p.redact(cause.Error())))
}

// redact replaces the program's credentials in a text.
func (p *program) redact(text string) string {
	p.mu.Lock()
	secrets := p.secrets
	p.mu.Unlock()
	for _, secret := range secrets {
		text = secret.Redact(text)
	}
	return text
}

// pin reads the program's declaration, once: what it declares later is a proposal. The
// error is for the operator.
func (p *program) pin(ctx context.Context) error {
	if now := p.pinned(); now != nil {
		return now.wrong
	}
	now, err := p.declares(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	first := p.holds == nil // another call may have read it at the same time
	if first {
		p.holds = now
	}
	err = p.holds.wrong
	p.mu.Unlock()
	if first {
		p.of.changed()
	}
	return err
}

func (p *program) pinned() *declaration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holds
}

// declares returns what the program declares now.
func (p *program) declares(ctx context.Context) (*declaration, error) {
	list, err := p.of.up.Declared(ctx, p.name)
	if err != nil {
		return nil, err
	}
	now := &declaration{tools: map[string]*tools.Tool{}}
	var wrong []error
	var texts []json.RawMessage
	for _, name := range p.config.Tools {
		for _, d := range list {
			if d.Name == name {
				texts = append(texts, json.RawMessage(d.Text))
			}
		}
		if t, err := p.tool(name, list); err != nil {
			wrong = append(wrong, fmt.Errorf("tool %s: %w", name, err))
		} else {
			now.tools[name] = &t
		}
	}
	now.wrong = errors.Join(wrong...)
	text, err := json.MarshalIndent(texts, "", "  ")
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	now.text, now.hash = string(text)+"\n", hex.EncodeToString(sum[:])
	return now, nil
}

// tool returns a tool by its declaration.
func (p *program) tool(name string, list []upstream.Declaration) (tools.Tool, error) {
	at := slices.IndexFunc(list, func(d upstream.Declaration) bool { return d.Name == name })
	if at < 0 {
		return tools.Tool{}, errors.New("the program does not declare it")
	}
	if slices.ContainsFunc(list[at+1:], func(d upstream.Declaration) bool { return d.Name == name }) {
		return tools.Tool{}, errors.New("the program declares it twice")
	}
	d := list[at]
	var resources, results tools.Marks
	text := d.Meta[metaResources]
	if text == nil {
		return tools.Tool{}, fmt.Errorf("_meta has no %s: the program says there which arguments are resources, {} for none", metaResources)
	}
	resources, err := tools.ParseMarks(text)
	if err != nil {
		return tools.Tool{}, fmt.Errorf("%s %w", metaResources, err)
	}
	if text := d.Meta[metaResults]; text != nil {
		if results, err = tools.ParseMarks(text); err != nil {
			return tools.Tool{}, fmt.Errorf("%s %w", metaResults, err)
		}
	}
	hints := d.Hints
	hints.Writes, hints.Turns = hints.Acts, p.turns.Turns // with access: read an agent has what changes nothing
	t := tools.Divided(name, d.About, hints, d.Input, resources, results, func(ctx context.Context, env tools.Env, args json.RawMessage) (tools.Result, error) {
		r, err := p.of.up.Do(ctx, p.name, d, args, map[string]any{metaAgent: string(env.Agent)})
		if errors.Is(err, upstream.ErrChanged) {
			err = cmp.Or(p.same(ctx), err) // keeps what it proposes
		}
		return p.answer(ctx, r, err)
	})
	t.Version = d.Sum
	return t, nil
}

// same returns an error unless the program declares what holds. Anything else is a proposal.
func (p *program) same(ctx context.Context) error {
	now, err := p.declares(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proposed = nil; p.holds != nil && now.hash != p.holds.hash {
		p.proposed = now
		return fmt.Errorf("%w: scopefs stores accept %s shows it", upstream.ErrChanged, p.name)
	}
	return nil
}

// answer returns what an agent gets of a call: nothing of the program's output but its
// answer, without the credentials.
func (p *program) answer(ctx context.Context, r tools.Result, err error) (tools.Result, error) {
	said, ok := errors.AsType[*tools.Error](err)
	switch {
	case ok:
		e := *said
		e.Message = p.redact(e.Message)
		return tools.Result{}, &e
	case err != nil && ctx.Err() != nil:
		return tools.Result{}, err
	case err != nil:
		return tools.Result{}, p.unavailable(err)
	}
	if r.Structured != nil {
		r.Structured = json.RawMessage(p.redact(string(r.Structured)))
	}
	for i := range r.Content {
		r.Content[i].Text = p.redact(r.Content[i].Text)
	}
	return r, nil
}

// check reports whether the program runs and has declared its tools well.
func (p *program) check(ctx context.Context) error {
	if p.of.exec == nil {
		return nil // no daemon runs, and nothing else starts it
	}
	err := p.pin(ctx)
	if err == nil {
		err = p.same(ctx) // it may have ended since
	}
	if err != nil {
		return errors.New(p.redact(err.Error()))
	}
	return nil
}
