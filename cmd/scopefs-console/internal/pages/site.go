// Package pages has the pages of the console. A page is a template and a function that gets its data from the control
// API; what a page changes, it changes by a form. The templates' values are text: see show.
package pages

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/access"
	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/colours"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/devices"
)

//go:embed html/*.html
var htmlFiles embed.FS

// askTime bounds a request to the daemon.
const askTime = 15 * time.Second

// Site is the pages of one daemon.
type Site struct {
	client *api.Client
	store  *devices.Store
	root   string
	live   *live
	shared shared
	routes []access.Route
	lexers *colours.Lexers

	templates map[devices.Role]map[string]*template.Template // by the visitor's role and the page's name
	assets    map[string]asset                               // by name
}

// A page is what a template gets.
type page struct {
	Name   string // of the template, and of the entry of the navigation
	Title  string
	Follow string // what the page shows again when it changes: top, log, approvals or fleet; "": nothing
	Data   any

	Status  int   // 0: 200
	Paired  bool  // the visitor is a device
	Waiting int   // approvals
	Fleet   bool  // the daemon is of one
	Lost    error // why the daemon does not answer
}

// A getter returns a page. An error that wraps api.ErrNoDaemon is shown as the state of the page.
type getter func(ctx context.Context, r *http.Request) (page, error)

// A poster does what a form says, and returns the path of the page that the browser opens next.
type poster func(ctx context.Context, r *http.Request) (next string, err error)

// New returns the pages for the daemon of a client and the devices of a store, below the path root.
func New(client *api.Client, store *devices.Store, root string) (*Site, error) {
	s := &Site{
		client:    client,
		store:     store,
		root:      root,
		live:      newLive(client),
		lexers:    colours.New(),
		templates: map[devices.Role]map[string]*template.Template{},
		assets:    map[string]asset{},
	}
	if err := s.readAssets(); err != nil {
		return nil, err
	}
	var err error
	for _, role := range devices.Roles {
		if s.templates[role], err = s.parse(role); err != nil {
			return nil, err
		}
	}
	if err := s.makeAssets(); err != nil {
		return nil, err
	}
	s.routes = []access.Route{
		s.get("GET /{$}", s.now),
		s.get("GET /sessions/{id}", s.session),
		s.post("POST /sessions/{id}/end", devices.All, s.end),
		s.get("GET /denials", s.denials),
		s.get("GET /definitions", s.definitions),
		s.get("GET /definitions/{id}", s.definition),
		s.get("GET /log", s.log),
		s.get("GET /log/{seq}", s.event),
		{Pattern: "GET /log/{seq}/proof", Role: devices.Look, Serve: s.proof},
		s.get("GET /charts", s.charts),
		s.get("GET /inbox", s.inbox),
		s.get("GET /inbox/{id}", s.inbox), // of a page that has answered a decision: it follows what waits
		{Pattern: "POST /inbox", Role: devices.Decide, Serve: s.batch},
		{Pattern: "POST /inbox/{id}", Role: devices.Decide, Serve: s.decide},
		s.get("GET /proposals", s.inbox), // likewise
		{Pattern: "POST /proposals", Role: devices.All, Serve: s.decideProposal},
		{Pattern: "POST /push", Role: devices.Look, Serve: s.setPush}, // about the visitor's own device
		s.get("GET /changes", s.changesOfAll),
		s.get("GET /changes/{agent}", s.changes),
		{Pattern: "POST /changes/{agent}", Role: devices.All, Serve: s.change},
		s.get("GET /rule", s.rule),
		{Pattern: "POST /rule", Role: devices.All, Serve: s.amend},
		s.get("GET /fleet", s.fleet),
		s.get("GET /devices", s.devices),
		{Pattern: "POST /devices", Role: devices.All, Serve: s.remove},
		{Pattern: "POST /devices/own", Role: devices.Look, Serve: s.removeOwn}, // the visitor's own device
		{Pattern: "GET /live", Role: devices.Look, Serve: s.stream},
	}
	return s, nil
}

// Routes returns the routes of the site, each with the role that it needs.
func (s *Site) Routes() []access.Route { return s.routes }

// parse parses each page together with the layout. The pages of a role have the buttons that it may press.
func (s *Site) parse(role devices.Role) (map[string]*template.Template, error) {
	layout := template.New("").Funcs(shown).Funcs(template.FuncMap{
		"change": changeBy, "modes": modes,
		"may":   func(need devices.Role) bool { return role.Covers(need) },
		"link":  func(to string) string { return s.root + to }, // of a path without values of others
		"nav":   navigation,
		"about": about, "verdict": verdict, "amount": amount, "chart": chart,
		"verdicts": func() []audit.Verdict { return []audit.Verdict{audit.Allow, audit.Deny, audit.Violation} },
		"query":    func(encoded string) template.URL { return template.URL(encoded) }, // of url.Values
		"cell":     func(r row, name string) cell { return cell{key(r.Key, name), r.Cell(name)} },
		"asset":    s.assetPath,
	})
	if _, err := layout.ParseFS(htmlFiles, "html/layout.html"); err != nil {
		return nil, err
	}
	names, err := fs.Glob(htmlFiles, "html/*.html")
	if err != nil {
		return nil, err
	}
	pages := map[string]*template.Template{}
	for _, name := range names {
		if path.Base(name) == "layout.html" {
			continue
		}
		t, err := layout.Clone()
		if err == nil {
			_, err = t.ParseFS(htmlFiles, name)
		}
		if err != nil {
			return nil, err
		}
		pages[strings.TrimSuffix(path.Base(name), ".html")] = t
	}
	return pages, nil
}

// get is the route of a page.
func (s *Site) get(pattern string, f getter) access.Route {
	return access.Route{Pattern: pattern, Role: devices.Look, Serve: func(w http.ResponseWriter, r *http.Request) {
		make := func() (int, []byte) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), askTime) // the page may be another viewer's, too
			defer cancel()
			p, err := f(ctx, r)
			if err != nil {
				p = failed(err)
			}
			return s.render(r, p)
		}
		by := access.Of(r.Context())
		var status int
		var text []byte
		if r.Header.Get(access.LiveHeader) != "" {
			status, text = s.shared.page(s.live.asked(), string(by.Role)+" "+by.ID+" "+r.URL.RequestURI(), make)
		} else {
			status, text = make()
		}
		send(w, status, text)
	}}
}

// post is the route of what a form does.
func (s *Site) post(pattern string, role devices.Role, f poster) access.Route {
	return access.Route{Pattern: pattern, Role: role, Serve: func(w http.ResponseWriter, r *http.Request) {
		defer s.shared.forget()
		ctx, cancel := context.WithTimeout(r.Context(), askTime)
		defer cancel()
		next, err := f(ctx, r)
		if err != nil {
			s.write(w, r, failed(err))
			return
		}
		http.Redirect(w, r, s.root+next, http.StatusSeeOther)
	}}
}

// failed is the page of an error.
func failed(err error) page {
	p := page{Name: "failed", Title: "Not done", Data: err.Error(), Status: http.StatusBadGateway}
	var refused *api.Error
	switch {
	case errors.As(err, &refused):
		p.Status = http.StatusBadRequest
	case errors.Is(err, api.ErrNoDaemon):
		p.Title, p.Follow = "Not connected", "top"
	}
	return p
}

// write writes the answer to a form.
func (s *Site) write(w http.ResponseWriter, r *http.Request, p page) {
	s.shared.forget()
	status, text := s.render(r, p)
	send(w, status, text)
}

// render returns a page for the visitor of a request, whole or not at all.
func (s *Site) render(r *http.Request, p page) (status int, text []byte) {
	if p.Status == 0 {
		p.Status = http.StatusOK
	}
	p.Waiting, p.Fleet, p.Lost = s.live.state()
	p.Paired = access.Of(r.Context()).ID != ""
	var out bytes.Buffer
	if err := s.templates[access.Of(r.Context()).Role][p.Name].ExecuteTemplate(&out, "layout", p); err != nil {
		return http.StatusInternalServerError, []byte("the page " + p.Name + " does not execute") // the test of templates finds it
	}
	return p.Status, out.Bytes()
}

func send(w http.ResponseWriter, status int, text []byte) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// Own writes a page of the door.
func (s *Site) Own(w http.ResponseWriter, status int, name string, data any) {
	var text bytes.Buffer
	if err := s.templates[devices.Look][name].ExecuteTemplate(&text, "door", page{Name: name, Data: data}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text.Bytes())
}

// Start begins to watch the daemon, until stop.
func (s *Site) Start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.live.run(ctx)
	}()
	return func() { cancel(); <-done }
}

func invalid(format string, args ...any) error {
	return &api.Error{Kind: api.Invalid, Text: fmt.Sprintf(format, args...)}
}
