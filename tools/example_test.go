package tools_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

type numbers struct {
	A int `json:"a"`
	B int `json:"b"`
}

type sum struct {
	Sum int `json:"sum"`
}

// only allows the tools of a list.
type only []string

func (o only) Call(tool string, _ bool) scope.Decision {
	for _, name := range o {
		if name == tool {
			return scope.Decision{Allow: true, Kind: scope.KindTool, Rule: "the list"}
		}
	}
	return scope.Decision{Kind: scope.KindTool, Rule: "not in the list"}
}

func (only) RatesOf(string) []scope.Rate     { return nil }
func (only) FiltersOf(string) []scope.Filter { return nil }
func (o only) Version() string               { return fmt.Sprint([]string(o)) }

// A program has tools of its own, rules of its own, and no definition files.
func Example() {
	add, err := tools.New("add", "Add two numbers.", tools.Hints{Idempotent: true},
		func(_ context.Context, _ tools.Env, n numbers) (sum, error) { return sum{n.A + n.B}, nil })
	if err != nil {
		fmt.Println(err)
		return
	}
	sub, err := tools.New("subtract", "Subtract b from a.", tools.Hints{Idempotent: true},
		func(_ context.Context, _ tools.Env, n numbers) (sum, error) { return sum{n.A - n.B}, nil })
	if err != nil {
		fmt.Println(err)
		return
	}
	set, err := tools.NewSet(tools.Gate{
		Agent: "research-01",
		Rules: func() tools.Rules { return only{"add"} },
		Record: func(_ context.Context, e audit.Event) error {
			fmt.Println("log:", e.Op, e.Verdict, e.Outcome)
			return nil
		},
	}, add, sub)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, name := range []string{"add", "subtract"} {
		result, err := set.Call(context.Background(), tools.Call{Tool: name, Args: []byte(`{"a": 2, "b": 3}`)})
		if refused, ok := errors.AsType[*tools.Error](err); ok {
			fmt.Println(refused.Code)
			continue
		}
		fmt.Println(string(result.Structured))
	}
	// Output:
	// log: add allow begin
	// log: add allow ok
	// {"sum":5}
	// log: subtract deny denied
	// denied
}
