// Package ask provides tools that ask people: ask_user asks the client's user a question,
// and permission_prompt asks the operator whether a client's program may use a tool of its
// own.
package ask

import (
	"context"
	"strings"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

type args struct {
	Question string   `json:"question" jsonschema:"the question's text"`
	Options  []string `json:"options,omitempty" jsonschema:"answers to choose from; omit them for a free answer" limit:"items=20"`
}

// Subject returns the question as the target.
func (a args) Subject() (path, target string) { return "", a.Question }

type result struct {
	Answer   string `json:"answer,omitempty"`
	Declined bool   `json:"declined,omitempty" jsonschema:"the user declined to answer"`
}

// Content returns the answer's text.
func (r result) Content() []tools.Content {
	if r.Declined {
		return []tools.Content{{Text: "The user declined to answer."}}
	}
	return []tools.Content{{Text: r.Answer}}
}

// User returns the tool ask_user. A call waits for the answer until its context
// ends. It fails with tools.Denied when the client cannot ask its user (in MCP: no
// elicitation), and with tools.Invalid for an empty question.
func User() (tools.Tool, error) {
	t, err := tools.New("ask_user",
		"Ask the user a question of at most 4096 characters and wait for the answer. Without a user it is refused: decide yourself.",
		tools.Hints{Title: "Ask the user", Waits: true}, ask)
	return tools.Judged(t, err, judge)
}

func judge(env tools.Env, _ args) error {
	if env.Ask == nil {
		return tools.Refused(scope.Decision{Kind: scope.KindNeed, Rule: "the client cannot ask its user"}, tools.Denied,
			"this client cannot ask its user")
	}
	return nil
}

func ask(ctx context.Context, env tools.Env, in args) (result, error) {
	if strings.TrimSpace(in.Question) == "" {
		return result{}, tools.Errorf(tools.Invalid, "the question is empty")
	}
	if err := judge(env, in); err != nil {
		return result{}, err
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
