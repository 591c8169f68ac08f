package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"rsc.io/qr"
)

// TestLines: the half blocks are the modules of the code, dark on light, with the quiet zone around them.
func TestLines(t *testing.T) {
	const link = "https://console.example:7777/abcdefghijklmnopqrstuvwxyz/pair/ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	text, err := lines(link)
	require.NoError(t, err)
	code, err := qr.Encode(link, qr.L)
	require.NoError(t, err)
	rows := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	assert.Len(t, rows, (code.Size+2*border+1)/2)
	for i, row := range rows {
		row, ok := strings.CutPrefix(row, "\x1b[30;107m")
		assert.True(t, ok)
		row, ok = strings.CutSuffix(row, "\x1b[0m")
		assert.True(t, ok)
		modules := []rune(row)
		require.Len(t, modules, code.Size+2*border)
		assert.LessOrEqual(t, len(modules), 80, "a terminal's width")
		for x, r := range modules {
			upper, lower := r == '▀' || r == '█', r == '▄' || r == '█'
			assert.Equal(t, code.Black(x-border, 2*i-border), upper)
			assert.Equal(t, code.Black(x-border, 2*i-border+1), lower)
		}
	}
}
