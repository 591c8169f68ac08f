package console

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestPictures: the two pages that README shows have what an operator wants to see. make pictures keeps them.
func TestPictures(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"reviewer": "tools: ['*']\nview: {paths: {.env: hide}}\npolicy: {tools: {ask: [write_file]}}"})
	const before = "package main\n\nimport \"fmt\"\n\n// greet says hello.\nfunc greet(name string) {\n\tfmt.Println(\"hello\", name)\n}\n"
	harness.Plant(t, h.Scope("reviewer"), "greet.go="+before, ".env=TOKEN=1")
	h.Put("scopefs.yaml", "approvals: {wait: 5m}\n")
	h.Start()
	s := serve(t, h)
	b := browse(t, s.link, 960, 660)
	b.reads("No session runs")
	u := h.Connect("reviewer")
	u.Call("read_file", map[string]any{"path": "greet.go"})
	u.Call("bash", map[string]any{"command": "ls; cat .env; true"})
	after := "package main\n\nimport \"log\"\n\n// greet says hello.\nfunc greet(name string) {\n\tlog.Printf(\"hello %q\", name)\n}\n"
	write := u.Begin(h.Soon(), "write_file", args{"path": "greet.go", "content": after})
	b.open(s, "/inbox")
	b.sees(`document.querySelector("table.diff td:nth-child(4) .k")`)
	b.reads("Approve once")
	b.shot("console-inbox")
	b.click(`article button[value=once]`)
	assert.NoError(t, <-write)
	b.open(s, "/sessions/"+h.Last("reviewer", "bash").Session)
	b.reads("write_file")
	b.reads(".env")
	b.sees(`document.querySelector("nav .badge").hidden`)
	b.shot("console-session")
}
