package pages

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	unified "github.com/rogpeppe/go-internal/diff"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/access"
	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/sides"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
)

// rulePage is what the template rule gets.
type rulePage struct {
	Agent   scope.ID
	Request api.RuleRequest
	Rule    api.Rule
	Diff    diff
	Notice  string
	Done    bool
}

// rule is the page of a change of a definition: its diff, and the button that makes it.
func (s *Site) rule(ctx context.Context, r *http.Request) (page, error) {
	return s.ruleOf(ctx, r, "")
}

func (s *Site) ruleOf(ctx context.Context, r *http.Request, notice string) (page, error) {
	id, req, err := ruleRequest(r)
	if err != nil {
		return page{}, err
	}
	made, err := s.client.Rule(ctx, id, req)
	if err != nil {
		return page{}, err
	}
	return page{Name: "rule", Title: "Change of a definition", Data: s.rulePageOf(id, req, made, notice)}, nil
}

func (s *Site) rulePageOf(id scope.ID, req api.RuleRequest, made api.Rule, notice string) rulePage {
	data := rulePage{Agent: id, Request: req, Rule: made, Notice: notice}
	data.Diff = s.diffOf(made.File, made.Before, made.After)
	return data
}

// diffOf returns the diff of two texts of a file.
func (s *Site) diffOf(name, before, after string) (d diff) {
	if before != after {
		d.Rows, d.Left = sides.Rows(string(unified.Diff("", []byte(before), "", []byte(after))), maxRows)
		if len(d.Rows) >= 3 {
			d.Rows = append([]sides.Row{{Own: name}}, d.Rows[3:]...) // after "diff", "---" and "+++"
		}
		s.lexers.Rows(time.Now().Add(colourTime), name, d.Rows)
	}
	return d
}

func ruleRequest(r *http.Request) (scope.ID, api.RuleRequest, error) {
	id, err := scope.ParseID(r.FormValue("agent"))
	if err != nil {
		return id, api.RuleRequest{}, invalid("agent: %v", err)
	}
	return id, api.RuleRequest{Name: r.FormValue("name"), Kind: r.FormValue("kind"), Access: r.FormValue("access"),
		Deny: r.FormValue("deny") != "", RemoveDeny: r.FormValue("remove_deny") != "", As: access.Of(r.Context()).As()}, nil
}

// amend makes the change that the operator has seen, or shows what it would be now.
func (s *Site) amend(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	id, req, err := ruleRequest(r)
	req.Shown = r.PostFormValue("shown")
	if err == nil && req.Shown == "" {
		err = invalid("the form does not say what was shown")
	}
	if err != nil {
		s.write(w, r, failed(err))
		return
	}
	made, err := s.client.Rule(ctx, id, req)
	if refused, ok := errors.AsType[*api.Error](err); ok && refused.Kind == api.Conflict {
		p, err := s.ruleOf(ctx, r, "Nothing was written: the change is not the one that was shown. This is what it is now.")
		if err != nil {
			p = failed(err)
		} else {
			p.Status = http.StatusConflict
		}
		s.write(w, r, p)
		return
	}
	if err != nil {
		s.write(w, r, failed(err))
		return
	}
	data := s.rulePageOf(id, req, made, "")
	data.Done = true
	s.write(w, r, page{Name: "rule", Title: "The definition is changed", Data: data})
}

// change is a change of a definition, as scopefs allow names it.
type change struct {
	Kind, Name, Access string
	Remove             bool
}

// changeBy returns the change of a command that the daemon proposes; nil if the command has quotes, or says more.
func changeBy(command string) *change {
	words := strings.Fields(command)
	if len(words) < 3 || words[0] != "scopefs" || words[1] != "allow" || strings.ContainsAny(command, `'"\`) {
		return nil
	}
	var c change
	for i := 2; i < len(words); i++ {
		switch word := words[i]; {
		case word == "--host", word == "--tool", word == "--path", word == "--preset":
			c.Kind = word[2:]
		case word == "--remove-deny":
			c.Remove = true
		case word == "--access" && i+1 < len(words):
			i++
			c.Kind, c.Access = "path", words[i]
		case (word == "--agent" || word == "--base" || word == "--dir") && i+1 < len(words):
			i++ // the link names the agent
		case strings.HasPrefix(word, "-"), c.Name != "":
			return nil
		default:
			c.Name = word
		}
	}
	if c.Name == "" {
		return nil
	}
	return &c
}
