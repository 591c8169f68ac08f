package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/scopefs/scopefs/scope/effect"
	"github.com/scopefs/scopefs/scope/effect/prose"
)

// Watch sees what one call changes in the view.
type Watch interface {
	// Effects returns what a call has changed since its last answer: this one, or the earlier call whose processes this one is about.
	// silent says that the text of the answer has nothing of it. Nil: this is not a call that changes the view.
	Effects(ctx context.Context, earlier Begun) (e *effect.Effects, silent bool)
	// End ends the watch.
	End()
}

// Of is implemented by an Out about the processes of an earlier call: the effects are that call's.
type Of interface{ Of() Begun }

// watch begins to watch a call; nil: it changes no file.
func (s *Set) watch(r *invocation) Watch {
	if s.gate.Effects == nil || !r.tool.Hints.Changes {
		return nil
	}
	return s.gate.Effects(r.told)
}

// tell adds to the answer of a call what the call has changed.
func (s *Set) tell(ctx context.Context, w Watch, r *invocation, result Result, err error) (Result, error) {
	if w == nil || errors.Is(err, ErrLeft) {
		return result, err
	}
	e, silent := w.Effects(ctx, result.of)
	if e == nil {
		return result, err
	}
	if err != nil {
		return Result{effects: e}, s.tellError(e, err)
	}
	call := r.id
	if result.of.Call != "" {
		call = result.of.Call
	}
	text := ""
	if !silent {
		text = prose.Text(e, r.args.names, s.lists(call), s.undoes(call))
	}
	if r.tool.Output == nil { // what its program says may be data
		if e.Unknown != "" {
			text = ""
		}
		return result.with(e, text), nil
	}
	return result.with(e, text).structured()
}

// tellError returns the error of a call that has changed something all the same.
func (s *Set) tellError(e *effect.Effects, err error) error {
	if e.Nothing || e.Unknown != "" && len(e.Roots) == 0 || errors.As(err, new(*Asked)) {
		return err
	}
	failed := *asError(err)
	failed.Effects = e
	return &failed
}

// lists says how all effects of a call can be listed, and undoes how they are taken back; "": they cannot.
func (s *Set) lists(call string) string {
	if s.Offers("changes") {
		return "changes call=" + call
	}
	return "your operator can list them: scopefs changes --call " + call
}

func (s *Set) undoes(call string) string {
	if s.Offers("undo") {
		return "undo call=" + call
	}
	return ""
}

// Offers reports whether the current rules allow a native tool, or let the operator be asked.
func (s *Set) Offers(name string) bool { return s.native(name) != nil && s.may(s.rules(), name) }

// names reports whether the arguments have a path, as a word of one of their texts.
func (a *arguments) names(rel string, _ bool) bool {
	word := strings.TrimSuffix(rel, "/")
	if quoted, err := json.Marshal(word); err == nil {
		word = string(quoted[1 : len(quoted)-1])
	}
	for text := string(a.canonical); ; {
		before, after, found := strings.Cut(text, word)
		if !found {
			return false
		}
		before = strings.TrimSuffix(strings.TrimSuffix(before, "/workspace/"), "./")
		if !partOfName(before, len(before)-1) && !partOfName(after, 0) {
			return true
		}
		text = after
	}
}

// partOfName reports whether a character of a text would go on with a path beside it.
func partOfName(text string, i int) bool {
	if i < 0 || i >= len(text) {
		return false
	}
	c := text[i]
	return c >= 0x80 || c == '.' || c == '-' || c == '_' || c == '/' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// with adds effects and their text.
func (r Result) with(e *effect.Effects, text string) Result {
	r.effects, r.text = e, text
	if text != "" {
		r.Content = append(slices.Clip(r.Content), Content{Text: text, Effects: true})
	}
	return r
}

// without removes the text of the effects, which an alias puts at its end.
func (r Result) without() Result {
	if r.text != "" {
		r.Content, r.text = r.Content[:len(r.Content)-1], ""
	}
	return r
}

// joined adds the texts of the effects of several calls. Structured are those of a single call.
func (r Result) joined(all []Result) Result {
	var texts []string
	for _, one := range all {
		if one.text != "" && !slices.Contains(texts, one.text) {
			texts = append(texts, one.text)
		}
	}
	if len(all) == 1 {
		r.effects, r.inside = all[0].effects, false
	}
	return r.with(r.effects, strings.Join(texts, ""))
}

// changed returns what the call has changed, for the log; nil: not known.
func (r Result) changed() (files *int, text string) {
	if r.effects == nil {
		return nil, ""
	}
	return prose.Logged(r.effects)
}

// structured adds the effects to the structured result.
func (r Result) structured() (Result, error) {
	text, err := json.Marshal(r.effects)
	if err != nil {
		return Result{}, err
	}
	whole := bytes.NewBuffer(make([]byte, 0, len(r.Structured)+len(text)+16))
	whole.Write(r.Structured[:len(r.Structured)-1])
	if len(r.Structured) > len("{}") {
		whole.WriteByte(',')
	}
	whole.WriteString(`"effects":`)
	whole.Write(text)
	whole.WriteByte('}')
	r.Structured, r.value, r.inside = whole.Bytes(), nil, true
	return r, nil
}

// Effects returns what the call has changed, unless that is in Structured. Nil: it is not known that the tool changes files.
func (r Result) Effects() *effect.Effects {
	if r.inside {
		return nil
	}
	return r.effects
}

// outputOf returns the schema of a tool's results, which have effects if it changes files.
func outputOf[T any](changes bool) (*jsonschema.Schema, error) {
	s, err := schemaOf[T]()
	switch {
	case err != nil:
		return nil, err
	case changes:
		return s.affected(), nil
	}
	return s.schema, nil
}

// affected returns the schema of results with effects.
func affected(plain *jsonschema.Schema) *jsonschema.Schema {
	s := *plain
	s.Properties = map[string]*jsonschema.Schema{"effects": {Type: "object", Description: "what the call changed in the view"}}
	maps.Copy(s.Properties, plain.Properties)
	s.PropertyOrder = append(slices.Clone(s.PropertyOrder), "effects")
	word(&s)
	return &s
}
