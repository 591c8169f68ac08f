// Package agenttest calls tools as an agent, through the door, in tests of tools.
package agenttest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/tools"
)

// Agent calls tools under the grants of a definition, and keeps what the door records.
type Agent struct {
	Set *tools.Set

	mu     sync.Mutex
	events []audit.Event
}

// New returns an agent with the tools of list. front is more lines of its definition.
// gate needs the agent's id; New sets session, rates, rules and record.
func New(t *testing.T, gate tools.Gate, front string, list []tools.Tool) *Agent {
	t.Helper()
	a := &Agent{}
	grants := Grants(t, gate.Agent, front, list)
	gate.Session, gate.Rates = "s", &tools.Rates{}
	gate.Rules = func() tools.Rules { return grants }
	gate.Record = func(_ context.Context, e audit.Event) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.events = append(a.events, e)
		return nil
	}
	var err error
	a.Set, err = tools.NewSet(gate, list...)
	require.NoError(t, err)
	return a
}

// Grants returns the grants of a definition, which may name the tools of list.
func Grants(t *testing.T, id scope.ID, front string, list []tools.Tool) *agents.Grants {
	t.Helper()
	var known catalog.Tools
	for _, tool := range list {
		known = append(known, catalog.Tool{Name: tool.Name, Writes: tool.Hints.Writes})
	}
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	text := "---\nname: " + string(id) + "\ndescription: test\n" + front + "\n---\n"
	require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", string(id)+".md"), []byte(text), 0o644))
	all, errs := agents.Load(base, agents.Host{Tools: known})
	require.Empty(t, errs)
	return all.Agents[id].Grants
}

// Call calls a tool and decodes its result into out, unless out is nil.
func (a *Agent) Call(ctx context.Context, t *testing.T, tool string, in, out any) error {
	t.Helper()
	text, err := json.Marshal(in)
	require.NoError(t, err)
	r, err := a.Set.Call(ctx, tools.Call{Tool: tool, Args: text})
	if err == nil && out != nil {
		require.NoError(t, json.Unmarshal(r.Structured, out))
	}
	return err
}

// Pages returns the keys of all pages of a listing. page calls the tool with the
// arguments in: "limit" bounds a page, and Pages sets "cursor".
func Pages(t *testing.T, in map[string]any, page func() (keys []string, next string)) (all []string) {
	t.Helper()
	for range 1000 {
		keys, next := page()
		assert.LessOrEqual(t, len(keys), in["limit"])
		all = append(all, keys...)
		if next == "" {
			return all
		}
		in["cursor"] = next
	}
	t.Fatal("a listing does not end")
	return nil
}

// Events returns what the door has recorded.
func (a *Agent) Events() []audit.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.events)
}

// Last returns the last event. It panics if there is none.
func (a *Agent) Last() audit.Event {
	all := a.Events()
	return all[len(all)-1]
}

// Code returns the code of an agent's error, "" for nil.
func Code(err error) tools.Code {
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[*tools.Error](err)
	if !ok {
		return tools.Code("no tools.Error: " + err.Error())
	}
	return e.Code
}

// CodeIs returns an agent's error, which must have a code.
func CodeIs(t *testing.T, want tools.Code, err error) *tools.Error {
	t.Helper()
	e, ok := errors.AsType[*tools.Error](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, want, e.Code, e.Message)
	return e
}
