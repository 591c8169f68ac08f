package mcp

import (
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requests are lines that request takes apart, and lines that it leaves to the SDK.
var requests = map[string]bool{
	`{"jsonrpc":"2.0","id":1,"method":"ping"}`:                                           true,
	`{"jsonrpc":"2.0","id":-10,"method":"ping","params":{}}`:                             true,
	` { "params" : {"a":[1,{"b":"}]\\"}]} , "method" : "m/n","id":"x","jsonrpc":"2.0" }`: true,
	`{"jsonrpc":"2.0","method":"notifications/initialized"}`:                             true,
	`{"jsonrpc":"2.0","method":"","params":{"id":7,"method":"no"}}`:                      true,

	`{}`: false, `[]`: false, `"x"`: false, ``: false, `{`: false, `7`: false, `null`: false,
	`{"jsonrpc":"2.0","id":1,"method":"ping"} {}`:                false,
	`{"jsonrpc":"2.0","id":1,"method":"ping","x":1}`:             false,
	`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`:            false,
	`{"jsonrpc":"2.0","\u0069d":1,"method":"ping"}`:              false,
	`{"jsonrpc":"2.0","ID":1,"method":"ping"}`:                   false,
	`{"jsonrpc":"2.0","id":1.5,"method":"ping"}`:                 false,
	`{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`:    false,
	`{"jsonrpc":"2.0","id":null,"method":"ping"}`:                false,
	`{"jsonrpc":"2.0","id":{},"method":"ping"}`:                  false,
	`{"jsonrpc":"2.0","id":true,"method":"ping"}`:                false,
	`{"jsonrpc":"2.0","id":"a\n","method":"ping"}`:               false,
	`{"jsonrpc":"2.0","id":"é","method":"ping"}`:                 false,
	`{"jsonrpc":"2.0","id":1,"method":"pi\u006eg"}`:              false,
	`{"jsonrpc":"2.0","id":1,"method":null}`:                     false,
	`{"jsonrpc":"2.0","id":1,"method":"ping","params":null}`:     false,
	`{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}`:      false,
	`{"jsonrpc":"1.0","id":1,"method":"ping"}`:                   false,
	`{"id":1,"method":"ping"}`:                                   false,
	`{"jsonrpc":"2.0","id":1,"result":{}}`:                       false,
	`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1,}}`: false,
}

func TestRequest(t *testing.T) {
	for line, want := range requests {
		assert.Equal(t, want, sameAsSDK(t, line), line)
	}
}

func FuzzRequest(f *testing.F) {
	for line := range requests {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) { sameAsSDK(t, line) })
}

// sameAsSDK reports whether request takes a line apart. It must then return what the SDK and receive made of it.
func sameAsSDK(t *testing.T, line string) bool {
	got, id := request([]byte(line))
	if got == nil {
		return false
	}
	m, err := jsonrpc.DecodeMessage([]byte(line))
	if err != nil && strings.Contains(err.Error(), "depth") { // the SDK refuses its parameters later
		return true
	}
	require.NoError(t, err, line)
	want := m.(*jsonrpc.Request)
	assert.Equal(t, want.Method, got.Method, line)
	assert.Equal(t, want.IsCall(), got.IsCall(), line)
	assert.Equal(t, string(want.Params), string(got.Params), line)
	receive(want, []byte(line), nil)
	receive(got, []byte(line), id)
	assert.Equal(t, want, got, line)
	return true
}
