package config

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/agents"
)

func TestKeep(t *testing.T) {
	t.Setenv("PORT_OF_TEST", "8080")
	def, err := agents.ParseDefinition("a.md", []byte("---\nname: a\nsandbox: {home: temporary, caches: [npm, go]}\nenv: {URL: 'http://x:${PORT_OF_TEST}/$${y}', PATH: '/opt/x:/usr/bin'}\n---\n"))
	require.NoError(t, err)
	assert.Equal(t, agents.Keep{Home: agents.HomeTemporary, Caches: []agents.Kept{agents.KeptNPM, agents.KeptGo}}, def.Keep)
	assert.Equal(t, map[string]string{"URL": "http://x:8080/${y}", "PATH": "/opt/x:/usr/bin"}, def.Env)

	host, err := Parse([]byte("sandbox: {caches: [pip], env: {A: '${PORT_OF_TEST}'}}"), Checks{})
	require.NoError(t, err)
	assert.Equal(t, "8080", host.Env["A"])
	assert.Equal(t, agents.Keep{Home: agents.HomeLasting, Caches: []agents.Kept{agents.KeptPIP}}, agents.Keep{}.Or(host.Keep))
	assert.Equal(t, def.Keep, def.Keep.Or(host.Keep))
	assert.Equal(t, agents.Keep{Home: agents.HomeTemporary, Caches: []agents.Kept{}}, agents.Keep{Home: agents.HomeTemporary, Caches: []agents.Kept{}}.Or(host.Keep), "no caches")
}

func TestKeepWrong(t *testing.T) {
	const rules = "network: {allow: [{host: x.test, credential: {from: {env: HOME}, variable: TOKEN}}]}\n"
	for text, want := range map[string]string{
		"sandbox: {home: mine}":                     `3: home: unknown "mine": want one of [lasting temporary]`,
		"sandbox: {caches: [npm, maven]}":           `3: caches: unknown "maven": want one of [npm pip go cargo]`,
		"sandbox: {caches: [npm, npm]}":             `3: caches: "npm" is here twice: remove one`,
		"sandbox: {expose: [/opt]}":                 `unknown key "expose"`,
		"env: {LD_PRELOAD: x}":                      "3: env: LD_PRELOAD changes every program of the sandbox",
		"env:\n  A: x\n  SCOPEFS_TASK: y":           "5: env: SCOPEFS_TASK is set by scopefs",
		"env: {HOME: /workspace}":                   "3: env: HOME is set by sandbox: {home}: use that",
		"env: {PATH: /opt/x}":                       "3: env: PATH has no /usr/bin",
		"env: {PATH: './bin:/usr/bin'}":             "a directory that is not absolute",
		rules + "env: {https_proxy: x}":             "4: env: https_proxy leads programs to the proxy",
		rules + "env: {NODE_EXTRA_CA_CERTS: x}":     "4: env: NODE_EXTRA_CA_CERTS leads programs",
		rules + "env: {TOKEN: x}":                   "4: env: TOKEN is the variable of a credential of network: remove one",
		"env: {'A B': x}":                           `env: "A B" is no name of a variable`,
		"env: {A: '${NOT_SET_IN_TESTS}'}":           "names ${NOT_SET_IN_TESTS}, which is not set",
		"user: '${USER}'":                           "3: user: has ${USER}, which only env and the texts of a server take",
		"view: {paths: {'${HOME}/**': hide}}":       "the key \"${HOME}/**\" has ${HOME}",
		"tools: ['${TOOL}']":                        "tools: an entry has ${TOOL}",
		"network: {allow: ['${HOST}']}":             "has ${HOST}",
		"network: {allow: [{host: '${HOST}.x'}]}":   "has ${HOST}",
		"mcp_servers: {x: {command: '${NO_SUCH}'}}": "names ${NO_SUCH}, which is not set",
	} {
		_, err := agents.ParseDefinition("a.md", []byte("---\nname: a\n"+text+"\n---\n"))
		assert.ErrorContains(t, err, want, text)
	}
	host, err := Parse([]byte("sandbox: {expose: [/a, {path: /b, sockets: true}, {path: /c}]}"), Checks{})
	assert.NoError(t, err)
	assert.Equal(t, []string{"/a", "/b", "/c"}, host.Expose)
	assert.Equal(t, []string{"/b"}, host.Sockets)
	for text, want := range map[string]string{
		"{paths: /a}":               `unknown key "paths": did you mean path`,
		"{path: /a, sockets: some}": "sockets: is a text: want true or false",
		"1":                         "expose: is a number: want a text",
		"{sockets: true}":           `expose: "" is no path: write path: /PATH`,
	} {
		_, err = Parse([]byte("sandbox: {expose: ["+text+"]}"), Checks{})
		assert.ErrorContains(t, err, want, text)
	}
	_, err = Parse([]byte("sandbox: {expose: ['${HOME}/x']}"), Checks{})
	assert.ErrorContains(t, err, "has ${HOME}")
	_, err = agents.ParseDefinition("a.md", []byte("---\nname: a\nnetwork: host\nenv: {https_proxy: 'http://proxy:3128'}\ndescription: 'the price is ${X}'\n---\n${Y}\n"))
	assert.NoError(t, err)
}
