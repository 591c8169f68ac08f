package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestChart: each ratio of a table is a bar, to the right of 1 or to the left, and the longer the greater.
func TestChart(t *testing.T) {
	page := "text\n\n| what | native µs | a | <b> | fastest |\n|---|---|---|---|---|\n" +
		"| x & y | 1.0 | 2.0× | 0.5× | <b> |\n| z | 3 | failed | 8.0× | <b> |\n\n| other | 1× |\n"
	rows := readTable(page)
	require.Equal(t, table{
		{"what", "native µs", "a", "<b>", "fastest"},
		{"x & y", "1.0", "2.0×", "0.5×", "<b>"},
		{"z", "3", "failed", "8.0×", "<b>"},
	}, rows)
	assert.Equal(t, []int{2, 3}, rows.series())

	var b bytes.Buffer
	require.NoError(t, rows.draw(&b, "a < b"))
	for d := xml.NewDecoder(bytes.NewReader(b.Bytes())); ; {
		_, err := d.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
	}
	var from, width []float64
	for _, bar := range regexp.MustCompile(`<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="9"`).FindAllStringSubmatch(b.String(), -1) {
		x, err := strconv.ParseFloat(bar[1], 64)
		require.NoError(t, err)
		w, err := strconv.ParseFloat(bar[2], 64)
		require.NoError(t, err)
		from, width = append(from, x), append(width, w)
	}
	require.Len(t, from, 3, "a cell without a ratio has no bar")
	assert.InDelta(t, from[0], from[1]+width[1], 0.2, "0.5× ends where 2.0× begins")
	assert.InDelta(t, width[0], width[1], 0.2)
	assert.InDelta(t, 3*width[0], width[2], 0.3, "8 is 2 to the third")
	assert.Contains(t, b.String(), ">failed<")

	assert.ErrorContains(t, readTable("| a |\n|---|\n| 1 |\n").draw(io.Discard, ""), "no column of ratios")
	assert.ErrorContains(t, readTable("none").draw(io.Discard, ""), "no table")
}

// TestCharts: the charts of docs/performance.md show the tables below them. `make charts` draws them anew.
func TestCharts(t *testing.T) {
	const dir = "../../docs"
	page, err := os.ReadFile(filepath.Join(dir, "performance.md"))
	require.NoError(t, err)
	all, err := charts(string(page))
	require.NoError(t, err)
	require.NotEmpty(t, all)
	files, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	require.NoError(t, err)
	assert.Len(t, files, len(all), "docs has a chart that no page shows")
	for name, want := range all {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err, "run make charts")
		assert.True(t, bytes.Equal(want, got), "%s is not drawn from the table below it: run make charts", name)
	}
}
