package ask

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
)

func TestAsk(t *testing.T) {
	broken := errors.New("broken")
	answers := func(a tools.Answer, err error) func(context.Context, tools.Question) (tools.Answer, error) {
		return func(_ context.Context, q tools.Question) (tools.Answer, error) {
			assert.Equal(t, tools.Question{Text: "Which?", Options: []string{"a", "b"}}, q)
			return a, err
		}
	}
	for name, c := range map[string]struct {
		question string
		user     func(context.Context, tools.Question) (tools.Answer, error)
		want     result
		text     string
		err      error
	}{
		"answer":   {"Which?", answers(tools.Answer{Text: "a"}, nil), result{Answer: "a"}, "a", nil},
		"declined": {"Which?", answers(tools.Answer{Text: "x", Declined: true}, nil), result{Declined: true}, "The user declined to answer.", nil},
		"error":    {"Which?", answers(tools.Answer{}, broken), result{}, "", broken},
		"nobody":   {"Which?", nil, result{}, "", judge(tools.Env{}, args{})},
		"empty":    {" ", nil, result{}, "", tools.Errorf(tools.Invalid, "the question is empty")},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ask(context.Background(), tools.Env{Ask: c.user}, args{c.question, []string{"a", "b"}})
			assert.Equal(t, c.err, err)
			assert.Equal(t, c.want, got)
			if err == nil {
				assert.Equal(t, []tools.Content{{Text: c.text}}, got.Content())
			}
		})
	}
}

func TestTool(t *testing.T) {
	tool, err := User()
	require.NoError(t, err)
	assert.Equal(t, "ask_user", tool.Name)
	assert.Equal(t, []string{"question"}, tool.Input.Required)
	_, target := args{Question: "Which?"}.Subject()
	assert.Equal(t, "Which?", target)
}
