// Package ask is the tool that asks the client's user a question.
package ask

import (
	"context"
	"strings"

	"github.com/scopefs/scopefs/tools"
)

type args struct {
	Question string   `json:"question" jsonschema:"what to ask"`
	Options  []string `json:"options,omitempty" jsonschema:"answers to choose one from; none: the user answers freely" limit:"items=20"`
}

// Subject is the question.
func (a args) Subject() (path, target string) { return "", a.Question }

type result struct {
	Answer   string `json:"answer,omitempty"`
	Declined bool   `json:"declined,omitempty" jsonschema:"the user did not want to answer"`
}

// Content is the answer alone.
func (r result) Content() []tools.Content {
	if r.Declined {
		return []tools.Content{{Text: "The user declined to answer."}}
	}
	return []tools.Content{{Text: r.Answer}}
}

// User returns the tool ask_user. It waits for the user as long as the call's
// context lives; where there is no user to ask it is denied.
func User() (tools.Tool, error) {
	return tools.New("ask_user", "Ask the user a question and wait for the answer.",
		tools.Hints{Title: "Ask the user", Waits: true}, ask)
}

func ask(ctx context.Context, env tools.Env, in args) (result, error) {
	if strings.TrimSpace(in.Question) == "" {
		return result{}, tools.Errorf(tools.Invalid, "the question is empty")
	}
	if env.Ask == nil {
		return result{}, tools.Errorf(tools.Denied, "there is no user to ask")
	}
	a, err := env.Ask(ctx, tools.Question{Text: in.Question, Options: in.Options})
	if err != nil {
		return result{}, err
	}
	if a.Declined {
		return result{Declined: true}, nil
	}
	return result{Answer: a.Text}, nil
}
