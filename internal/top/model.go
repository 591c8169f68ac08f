package top

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/tools/approvals"
)

// model is the interactive top: see show.
//
// What a key does is decided by what the operator sees: a row is selected by its id, not
// by its place, and a call can be approved only on a page with all its arguments, after
// the last of them was on the screen.
type model struct {
	ctx      context.Context
	source   source
	interval time.Duration

	width, height int
	before, now   api.Top
	idle          bool
	selected      string // the key of a row
	first         int    // of the rows on the screen
	note          string // the result of the last key
	fatal         error  // why there is no answer
	page          any    // *approvalPage, *killPage or *logPage; nil is the table

	stop  context.CancelFunc // of the log that is followed
	lines chan string
}

// approvalPage shows a call that waits.
type approvalPage struct {
	approval approvals.Approval
	from     int  // first line on the screen
	seen     bool // the last line was on the screen
}

// killPage asks whether to kill a session.
type killPage struct{ row row }

// logPage follows an agent's log.
type logPage struct {
	agent string
	text  []string
}

// maxLogLines bounds the lines of a log that are kept.
const maxLogLines = 500

// Messages of the model.
type (
	topMsg struct {
		top     api.Top
		between bool // two ticks
		err     error
	}
	tickMsg     struct{}
	approvalMsg struct {
		approval approvals.Approval
		err      error
	}
	doneMsg struct {
		note string
		err  error
	}
	logMsg struct {
		from chan string
		text string
		ok   bool
	}
)

func newModel(ctx context.Context, source source, interval time.Duration) *model {
	return &model{ctx: ctx, source: source, interval: interval, width: 80, height: 24, stop: func() {}}
}

func (m *model) refresh() message {
	top, err := m.source.Top(m.ctx)
	return topMsg{top: top, err: err}
}

// update takes a message, and returns what to do beside; nil is nothing.
func (m *model) update(msg message) command {
	switch msg := msg.(type) {
	case sizeMsg:
		m.width, m.height = msg.width, msg.height
	case tickMsg:
		return m.refresh
	case topMsg:
		if msg.err != nil {
			m.fatal = msg.err
			return quit
		}
		if !msg.between || msg.top.Time.After(m.now.Time) { // the daemon keeps an answer for a second
			m.before, m.now = m.now, msg.top
		}
		if !msg.between {
			return m.tick
		}
	case approvalMsg:
		m.open(msg)
	case doneMsg:
		m.note = msg.note
		if msg.err != nil {
			m.note = msg.err.Error()
		}
		return m.again
	case logMsg:
		return m.append(msg)
	case keyMsg:
		return m.key(string(msg))
	}
	return nil
}

// tick waits for the next refresh.
func (m *model) tick() message {
	time.Sleep(m.interval)
	return tickMsg{}
}

// again is a refresh between two ticks.
func (m *model) again() message {
	msg := m.refresh().(topMsg)
	msg.between = true
	return msg
}

// key does what a key says on the present page.
func (m *model) key(key string) command {
	if key == "ctrl+c" {
		return quit
	}
	switch page := m.page.(type) {
	case *approvalPage:
		return m.approvalKey(page, key)
	case *killPage:
		m.page = nil
		if key == "y" {
			return m.kill(page.row)
		}
		m.note = "not killed"
		return nil
	case *logPage:
		if key == "esc" || key == "q" {
			m.stop()
			m.page = nil
		}
		return nil
	}
	m.note = ""
	rows := m.rows()
	var row *row
	if at := find(rows, m.selected); at >= 0 {
		row = &rows[at]
	}
	switch key {
	case "q":
		return quit
	case "i":
		m.idle = !m.idle
	case "up", "k":
		m.move(rows, -1)
	case "down", "j":
		m.move(rows, 1)
	case "pgup":
		m.move(rows, -m.room())
	case "pgdown":
		m.move(rows, m.room())
	case "enter", "a", "d":
		if row != nil && row.kind == approvalRow {
			return m.fetch(row.id)
		}
		m.note = "select a call that waits"
	case "x":
		if row == nil || row.kind != sessionRow {
			m.note = "select a session"
			break
		}
		m.page = &killPage{*row}
	case "l":
		if row == nil {
			m.note = "select an agent"
			break
		}
		return m.follow(row.agent)
	}
	return nil
}

// move selects another row.
func (m *model) move(rows []row, by int) {
	if len(rows) == 0 {
		m.selected = ""
		return
	}
	at := find(rows, m.selected)
	if at < 0 { // what was selected has gone
		at, by = 0, 0
	}
	m.selected = rows[min(max(at+by, 0), len(rows)-1)].key()
}

// fetch gets a call with all its arguments.
func (m *model) fetch(id string) command {
	return func() message {
		p, err := m.source.Approval(m.ctx, id)
		return approvalMsg{p, err}
	}
}

func (m *model) open(msg approvalMsg) {
	if msg.err != nil {
		m.note = msg.err.Error()
		return
	}
	m.page = &approvalPage{approval: msg.approval}
}

// approvalKey is key for a page with a call.
func (m *model) approvalKey(page *approvalPage, key string) command {
	switch key {
	case "esc", "q":
		m.page, m.note = nil, "not decided"
	case "down", "j":
		page.from++
	case "up", "k":
		page.from--
	case "pgdown", "space":
		page.from += m.room()
	case "pgup":
		page.from -= m.room()
	case "y":
		if !page.seen {
			m.note = "not all of the call was on the screen: scroll down to its last line, in 40 columns and 5 lines or more"
			return nil
		}
		m.page = nil
		return m.decide(page.approval, true)
	case "n":
		m.page = nil
		return m.decide(page.approval, false)
	}
	return nil
}

func (m *model) decide(p approvals.Approval, grant bool) command {
	return func() message {
		var decided approvals.Approval
		var err error
		how := api.DecideRequest{Shown: p.Hash}
		if grant {
			decided, err = m.source.Approve(m.ctx, p.ID, how)
		} else {
			decided, err = m.source.Deny(m.ctx, p.ID, how)
		}
		return doneMsg{fmt.Sprintf("%s of %s: %s", decided.Tool, decided.Whose(), decided.State), err}
	}
}

func (m *model) kill(row row) command {
	m.note = "killing " + row.id
	return func() message {
		s, err := m.source.Kill(m.ctx, row.id)
		return doneMsg{fmt.Sprintf("%s of %s: killed", s.ID, s.Agent), err}
	}
}

// follow opens the log of an agent.
func (m *model) follow(agent string) command {
	ctx, stop := context.WithCancel(m.ctx)
	m.stop, m.lines, m.page = stop, make(chan string), &logPage{agent: agent}
	go m.source.Follow(ctx, agent, m.lines)
	return next(m.lines)
}

// next waits for a line of a log.
func next(lines chan string) command {
	return func() message {
		text, ok := <-lines
		return logMsg{lines, text, ok}
	}
}

func (m *model) append(msg logMsg) command {
	page, shown := m.page.(*logPage)
	if !msg.ok {
		return nil
	}
	if shown && msg.from == m.lines { // not of a log that was left
		page.text = append(page.text, printable.Text(msg.text))
		page.text = page.text[max(0, len(page.text)-maxLogLines):]
	}
	return next(msg.from)
}

func (m *model) screen() *screen { return newScreen(m.before, m.now) }

func (m *model) rows() []row { return m.screen().rows(m.idle) }

// room is how many lines a page has, between the head and the foot.
func (m *model) room() int { return max(m.height-4, 1) }

const (
	bold     = "\x1b[1m"
	reverse  = "\x1b[7m"
	unstyled = "\x1b[0m"
)

// draw returns the page: as many lines as the screen has, five at least.
func (m *model) draw() string {
	s := m.screen()
	body, foot := []string(nil), ""
	switch page := m.page.(type) {
	case *approvalPage:
		body, foot = m.drawApproval(page)
	case *logPage:
		body = append(body, bold+m.fit("log of "+page.agent)+unstyled)
		for _, text := range page.text[max(0, len(page.text)-m.room()):] {
			body = append(body, m.fit(text))
		}
		foot = "esc back"
	default:
		body, foot = m.drawRows(s), "↑↓ select  enter open a call  x kill  l log  i idle  q quit"
		if page, ok := m.page.(*killPage); ok {
			foot = "kill " + page.row.id + " of " + page.row.agent + "? y, or any other key"
		}
	}
	for len(body) < m.room()+1 {
		body = append(body, "")
	}
	lines := []string{m.fit(s.head())}
	lines = append(lines, body...)
	lines = append(lines, m.fit(printable.Text(m.note)), reverse+m.fit(printable.Text(foot))+unstyled)
	return strings.Join(lines, "\n")
}

// fit cuts a line to the width of the screen. A character beyond Latin-1 may take two columns.
func (m *model) fit(text string) string {
	column, cut := 0, 0 // cut leaves room for the ellipsis
	for i, r := range text {
		if column <= m.width-1 {
			cut = i
		}
		column++
		if r > unicode.MaxLatin1 {
			column++
		}
		if column > m.width {
			return text[:cut] + "…"
		}
	}
	return text
}

func (m *model) drawRows(s *screen) (body []string) {
	body = append(body, bold+m.fit(header)+unstyled)
	rows := s.rows(m.idle)
	if at := find(rows, m.selected); at >= 0 { // keep the selected row on the screen
		m.first = max(min(m.first, at), at-m.room()+1)
	}
	m.first = min(m.first, max(len(rows)-m.room(), 0))
	for _, row := range rows[m.first:min(len(rows), m.first+m.room())] {
		text := m.fit(row.text)
		switch {
		case row.key() == m.selected:
			text = reverse + text + unstyled
		case row.kind == approvalRow:
			text = bold + text + unstyled
		}
		body = append(body, text)
	}
	return body
}

// minWidth and minHeight are the least size at which a call can be approved: the lines of a call are not narrower, and the
// screen has one of them.
const minWidth, minHeight = 40, 5

// drawApproval shows lines of a call, and notes when the last one is on the screen.
func (m *model) drawApproval(page *approvalPage) (body []string, foot string) {
	lines := strings.Split(strings.TrimSuffix(report.Call(page.approval, 0, max(m.width, minWidth)), "\n"), "\n")
	last := max(len(lines)-m.room(), 0)
	page.from = min(max(page.from, 0), last)
	if page.from == last && m.width >= minWidth && m.height >= minHeight {
		page.seen = true
	}
	body = append(body, bold+m.fit("approve this call?")+unstyled)
	for _, text := range lines[page.from:min(len(lines), page.from+m.room())] {
		body = append(body, m.fit(text))
	}
	foot = "y approve once  n deny  esc back"
	if !page.seen {
		foot = fmt.Sprintf("line %d of %d: ↓ or space for more  n deny  esc back", page.from+m.room(), len(lines))
	}
	return body, foot
}
