package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// chooseLayer makes a command with --changes held one of the branch that all such commands of an agent share, whatever the view of the
// agent is: other sessions do not see it. An agent whose definition holds changes has them itself.
func (a *app) chooseLayer(p config.Paths, project *config.Project, name string) error {
	if a.flags.Changes != agents.ChangesHeld || a.Branch != "" || project == nil {
		return nil
	}
	of, err := a.baseAgentIn(p, project, name)
	if err != nil {
		return err
	}
	def, err := definitions.Agent(p, of)
	if err != nil || def.View.Changes == agents.ChangesHeld {
		return err
	}
	layer := agents.HeldLayer
	if of != project.ID {
		layer = string(of) + "-" + layer
	}
	id, err := scope.ParseID(layer)
	if err != nil {
		return err
	}
	made, err := definitions.Agent(p, id)
	if errors.Is(err, api.ErrUnknown) {
		if err = definitions.MakeBranch(p, id, of); err != nil {
			made, _ = definitions.Agent(p, id) // another command may have made it
		}
	}
	if made != nil && made.Branch == of {
		err = nil
	} else if made != nil {
		err = fmt.Errorf("%s is an agent already, and no branch of %s: rename it", id, of)
	}
	if err != nil {
		return exit.With(exit.Usage, fmt.Errorf("--changes held: %w", err))
	}
	a.Branch, a.flags.Changes = layer, ""
	return nil
}

// layersOf returns the agents that may hold changes of the directory of an agent: the agent itself, and its branches; of a root likewise.
func layersOf(k kept) (all []kept, err error) {
	loaded, _, err := definitions.Load(k.paths)
	if err != nil {
		return nil, err
	}
	return layersIn(loaded, k), nil
}

func layersIn(loaded *agents.Snapshot, k kept) (all []kept) {
	owner := func(def *agents.Agent) *agents.Agent {
		if def.RootOf != "" {
			return loaded.Agents[def.RootOf]
		}
		return def
	}
	of := owner(k.def)
	for _, id := range slices.Sorted(maps.Keys(loaded.Agents)) {
		def := loaded.Agents[id]
		own := owner(def)
		if of == nil || own == nil || def.Dir != k.def.Dir || (def.RootOf == "") != (k.def.RootOf == "") ||
			cmp.Or(own.Branch, own.Name) != cmp.Or(of.Branch, of.Name) {
			continue
		}
		l := k
		l.id, l.def, l.layer = id, def, own.Name
		all = append(all, l)
	}
	return all
}

// layer returns the one of an agent's layers that holds changes. Where several do, it lists them, and the error says how to name one.
func (a *app) layer(ctx context.Context, k kept) (kept, error) {
	known, _, err := definitions.Load(k.paths)
	if err != nil {
		return k, err
	}
	all := layersIn(known, k)
	holding := slices.DeleteFunc(slices.Clone(all), func(l kept) bool { return !l.holding() && !l.rootsHolding() })
	if len(holding) > 1 {
		var list report.Branches
		holding, list = a.listLayers(ctx, known, holding)
		if len(holding) > 1 {
			var names []string
			for _, l := range holding {
				names = append(names, "--branch "+string(l.layer))
			}
			return k, errors.Join(list.Print(a.err), exit.Usagef("which changes: give %s", strings.Join(names, ", or ")))
		}
	}
	if len(holding) == 1 {
		return holding[0], nil
	}
	shared := slices.IndexFunc(all, func(l kept) bool { return l.def.HomeID() != l.id })
	if branched, _ := k.left(); shared >= 0 && !branched && !k.holds(ctx) {
		return all[shared], nil // it holds nothing any more
	}
	return k, nil
}

// listLayers lists what layers hold. It leaves out those that hold nothing.
func (a *app) listLayers(ctx context.Context, known *agents.Snapshot, all []kept) (holding []kept, list report.Branches) {
	for _, k := range all {
		dirs, err := a.heldDirectories(ctx, k)
		b := k.asBranch(known)
		if err == nil {
			err = a.open(ctx, dirs, func(ctx context.Context, dirs directories) (err error) {
				for _, d := range dirs {
					err = errors.Join(err, b.Find(ctx, d.h, d.root))
				}
				return err
			})
		}
		if err != nil {
			b.Error = err.Error()
		}
		if b.Changes > 0 || err != nil {
			holding, list = append(holding, k), append(list, b)
		}
	}
	list.Compare()
	return holding, list
}

// holds reports whether changes of the agent are held from now on, all or by rules.
func (k kept) holds(ctx context.Context) bool {
	return k.def.View.Changes == agents.ChangesHeld || k.def.View.PolicySpec().Holds() || k.mounted(ctx).Holds
}

// holding reports whether the agent may hold something: a directory that is empty again may be left.
func (k kept) holding() bool {
	_, whole := k.left()
	_, byRule := view.Left(filepath.Join(k.paths.History(k.id, k.def.History.Dir), hold.StateName))
	return whole || byRule
}

// rootsHolding is holding of the agent's roots.
func (k kept) rootsHolding() bool {
	roots, _ := rootsOf(k) // another command says what is wrong with the definitions
	return slices.ContainsFunc(roots, kept.holding)
}

// heldLayers returns the layers of an agent in which changes are held; none if the command names one.
func (a *app) heldLayers(k kept) (map[string]kept, error) {
	if a.Branch != "" || k.named {
		return nil, nil
	}
	all, err := layersOf(k)
	held := map[string]kept{}
	for _, l := range all {
		if l.def.View.Changes == agents.ChangesHeld && l.id != k.id {
			held[string(l.id)] = l
		}
	}
	return held, err
}

// lastHeld returns the layer in which the last session of an agent has changed something; nil: its changes are in the directory. kept.settled
// is set if a commit or a discard has ended them since. A layer that the command names is not looked for.
func (a *app) lastHeld(ctx context.Context, k kept) (found *kept, err error) {
	held, err := a.heldLayers(k)
	if err != nil || len(held) == 0 {
		return nil, err
	}
	past, err := report.LastChanges(ctx, k.paths.Audit(), time.Time{}, func(id string) bool {
		_, is := held[id]
		return is || id == string(k.id) && k.def.View.Changes == agents.ChangesHeld
	})
	last := past[string(k.id)].Last
	for id, l := range held {
		at := past[id].Last
		if err != nil || !at.After(last) {
			continue
		}
		if !l.holding() && !l.rootsHolding() {
			e, failed := report.LastEvent(ctx, k.paths.Audit(), func(e *audit.Event) bool {
				return e.Event == audit.KindHistory && e.Agent == id && e.Outcome == "done" && (e.Op == "commit" || e.Op == "discard")
			})
			if err = failed; err != nil || !e.Time.After(at) {
				continue
			}
			l.settled = &e
		}
		last, found = at, &l
	}
	return found, err
}
