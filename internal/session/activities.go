package session

import (
	"context"
	"encoding/json"

	"github.com/scopefs/scopefs/scope/activities"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/activity"
)

// CheckActivity judges the schema and the name of an activity.
func CheckActivity(a activities.Activity) error {
	if _, err := (*client)(nil).activity(a); err != nil {
		return err
	}
	return notOfProfiles(a.Name, "rename the file")
}

// activities returns the tools that the operator has declared.
func (c *client) activities() []tools.Tool {
	var all []tools.Tool
	for _, a := range c.agent.Activities().All {
		if t, err := c.activity(a); err == nil { // they were checked
			all = append(all, t)
		}
	}
	return all
}

// activity returns the tool of an activity.
func (c *client) activity(a activities.Activity) (tools.Tool, error) {
	hints := tools.Hints{Title: a.Title, Acts: !a.ReadOnly, Destructive: !a.ReadOnly, Changes: !a.ReadOnly, OpenWorld: true, Waits: true}
	t, err := tools.Declared(a.Name, a.Description, hints, a.Schema, func(ctx context.Context, env tools.Env, params json.RawMessage) (tools.Result, error) {
		said := env.Envelope
		member, module, bad := said.Member()
		switch {
		case bad != nil:
			return tools.Result{}, &tools.Error{Code: tools.Invalid, Message: bad.Message, Path: bad.Path}
		case member != "" && said.Activity != nil:
			return tools.Result{}, &tools.Error{Code: tools.Invalid, Message: "a call has _activity or a member", Path: "/_activity"}
		case member != "":
			return c.hands().Call(ctx, env, a.Name, params, member, module)
		case said.Activity != nil:
			return c.other(ctx, env, a, *said.Activity, params)
		case a.Program:
			return c.explicit(ctx, env, a, a, params)
		}
		return activity.Latent(a.Name, a.Description, env, params)
	})
	t.Version = a.Sum
	return t, err
}

// other does a call by the program of another activity that the agent may use.
func (c *client) other(ctx context.Context, env tools.Env, a activities.Activity, name string,
	params json.RawMessage) (tools.Result, error) {
	d := c.rules().Call(name, false)
	for _, by := range c.agent.Activities().All {
		if by.Name == name && by.Program && d.Allow {
			t, err := c.activity(by)
			if err != nil {
				return tools.Result{}, err
			}
			if bad := t.Takes(params); bad != nil { // its program was written for its own schema
				bad.Message = name + ": " + bad.Message
				return tools.Result{}, bad
			}
			return c.explicit(ctx, env, a, by, params)
		}
	}
	e := tools.Errorf(tools.NotFound, "there is no activity %.64q here", name)
	if !d.Allow {
		e = tools.Refused(d, tools.NotFound, "there is no activity %.64q here", name)
	}
	e.Path = "/_activity"
	return tools.Result{}, e
}
