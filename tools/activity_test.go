package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
)

// newActivity returns a set with one activity.
func newActivity(t *testing.T, schema string, f func(context.Context, json.RawMessage, scoped.Scoped) (any, error)) *tools.Set {
	t.Helper()
	tool, err := tools.Activity("logEvent", "Log an event.", tools.Hints{}, json.RawMessage(schema), f)
	require.NoError(t, err)
	set, err := tools.NewSet(tools.Gate{Agent: "a", Rules: func() tools.Rules { return only{"logEvent"} },
		Record: func(context.Context, audit.Event) error { return nil }})
	require.NoError(t, err)
	require.NoError(t, set.Declare([]tools.Tool{tool}))
	return set
}

const anyState = `{"type":"object","properties":{"_scopes":{"const":["state"]},"eventName":{"type":"string"}}}`

func TestActivityResults(t *testing.T) {
	for name, test := range map[string]struct {
		out              any
		structured, text string
	}{
		"object": {map[string]int{"n": 1}, `{"n":1}`, `{"n":1}`}, "list": {[]int{1}, "", "[1]"}, "nothing": {nil, "", "null"},
	} {
		set := newActivity(t, anyState, func(context.Context, json.RawMessage, scoped.Scoped) (any, error) { return test.out, nil })
		r, err := set.Call(t.Context(), tools.Call{Tool: "logEvent"})
		require.NoError(t, err, name)
		assert.Equal(t, test.structured, string(r.Structured), name)
		assert.Equal(t, test.text, r.Content[0].Text, name)
	}
	for want, f := range map[string]func() error{
		"not_found": func() error { return tools.Errorf(tools.NotFound, "x") },
		"internal":  func() error { panic("x") },
	} {
		set := newActivity(t, anyState, func(context.Context, json.RawMessage, scoped.Scoped) (any, error) { return nil, f() })
		_, err := set.Call(t.Context(), tools.Call{Tool: "logEvent"})
		e, ok := errors.AsType[*tools.Error](err)
		require.True(t, ok)
		assert.Equal(t, want, string(e.Code))
	}
}

// TestActivityInstances runs a thousand calls for a thousand instances of one
// environment, many at the same time. Each sees its own message and the global one.
func TestActivityInstances(t *testing.T) {
	const n = 1000
	messages := []string{`{"type":"state","text":"global"}`}
	for i := range n {
		messages = append(messages, fmt.Sprintf(`{"type":"state","_instance":"i%d","text":"<%[1]d>"}`, i))
	}
	env, bad := scoped.Parse([]byte("[" + strings.Join(messages, ",") + "]"))
	require.Nil(t, bad)
	set := newActivity(t, anyState, func(_ context.Context, call json.RawMessage, given scoped.Scoped) (any, error) {
		return map[string]any{"call": call, "context": json.RawMessage(given.JSON())}, nil
	})
	var all sync.WaitGroup
	turn := make(chan struct{}, 16)
	for i := range n {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			instance := fmt.Sprintf("i%d", i)
			r, err := set.Call(t.Context(), tools.Call{Tool: "logEvent", Context: env, Args: fmt.Appendf(nil, `{"_instance":%q,"eventName":"e"}`, instance)})
			want := fmt.Sprintf(`{"call":{"_tool":"logEvent","_instance":"i%d","eventName":"e"},"context":{"state":[{"type":"state","text":"global"},{"type":"state","_instance":"i%[1]d","text":"<%[1]d>"}]}}`, i)
			if assert.NoError(t, err) {
				assert.JSONEq(t, want, string(r.Structured))
			}
		})
	}
	all.Wait()
}

// A program registers a function as the activity of a declared call. The call has the
// event's name. The user is in the context: the function gets the scope state.
func ExampleActivity() {
	schema := `{"type": "object", "properties": {"eventName": {"type": "string"}, "_scopes": {"const": ["state"]}}, "required": ["eventName"]}`
	logEvent, err := tools.Activity("logEvent", "Log an event of the current user.", tools.Hints{Acts: true}, json.RawMessage(schema),
		func(_ context.Context, call json.RawMessage, given scoped.Scoped) (any, error) {
			var event struct {
				EventName string `json:"eventName"`
			}
			var state []struct {
				UserID string `json:"userId"`
			}
			err := errors.Join(json.Unmarshal(call, &event), json.Unmarshal(given.Files()["state"], &state))
			if err != nil || len(state) == 0 {
				return nil, tools.Errorf(tools.Invalid, "the context has no state")
			}
			return map[string]string{"logged": event.EventName + " of " + state[0].UserID}, nil
		})
	if err != nil {
		fmt.Println(err)
		return
	}
	set, err := tools.NewSet(tools.Gate{
		Agent: "research-01",
		Rules: func() tools.Rules { return only{"logEvent"} },
		Record: func(_ context.Context, e audit.Event) error {
			fmt.Println("log:", e.Op, e.Outcome, len(e.Context))
			return nil
		},
	})
	if err == nil {
		err = set.Declare([]tools.Tool{logEvent})
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	env, bad := scoped.Parse([]byte(`[{"type": "state", "userId": "u-17"}, {"type": "input", "text": "log me in"}]`))
	if bad != nil {
		fmt.Println(bad)
		return
	}
	result, err := set.Call(context.Background(), tools.Call{Tool: "logEvent", Args: []byte(`{"eventName": "login"}`), Context: env})
	fmt.Println(string(result.Structured), err)
	// Output:
	// log: logEvent begin 1
	// log: logEvent ok 0
	// {"logged":"login of u-17"} <nil>
}
