package main

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// table is a Markdown table: the cells of each row, the header first.
type table [][]string

// readTable returns the first table of a text.
func readTable(text string) (t table) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "|---"):
		case strings.HasPrefix(line, "|"):
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			for len(t) > 0 && len(cells) < len(t[0]) {
				cells = append(cells, "")
			}
			t = append(t, cells)
		case len(t) > 0:
			return t
		}
	}
	return t
}

// ratio returns the number of a cell such as "1.2×".
func ratio(cell string) (float64, bool) {
	number, found := strings.CutSuffix(cell, "×")
	v, err := strconv.ParseFloat(number, 64)
	return v, found && err == nil && v > 0
}

// series are the columns that hold ratios: at least one, and else words such as "failed".
func (t table) series() (columns []int) {
	for c := 1; c < len(t[0]); c++ {
		for _, row := range t[1:] {
			if _, ok := ratio(row[c]); ok {
				columns = append(columns, c)
				break
			}
		}
	}
	return columns
}

// The measures of a chart, in pixels.
const (
	chartWidth = 900
	labelWidth = 330
	barHeight  = 11
	rowGap     = 9
	chartTop   = 64
)

var barColours = []string{"#b0b7c3", "#8fa3bf", "#d9a86c", "#1f77b4", "#7a5195"}

// draw writes a chart of the table's ratios: a bar from 1 to each ratio, on a logarithmic axis.
func (t table) draw(w io.Writer, title string) error {
	if len(t) < 2 {
		return errors.New("no table")
	}
	columns := t.series()
	if len(columns) == 0 {
		return errors.New("no column of ratios, such as 1.2×")
	}
	low, high := 0.8, 1.25
	for _, row := range t[1:] {
		for _, c := range columns {
			if v, ok := ratio(row[c]); ok {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	const plot = chartWidth - labelWidth - 70 // room for the number behind the longest bar
	at := func(v float64) float64 { return labelWidth + plot*math.Log(v/low)/math.Log(high/low) }
	height := chartTop + (len(t)-1)*(len(columns)*barHeight+rowGap) + 10

	var b bytes.Buffer
	text := func(x, y float64, extra, s string) {
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>\n", x, y, extra, html.EscapeString(s))
	}
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\"", chartWidth, height)
	b.WriteString(" font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\">\n")
	fmt.Fprintf(&b, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", chartWidth, height)
	text(10, 18, ` font-size="14" font-weight="bold"`, title)
	x := 10.0
	for i, c := range columns {
		fmt.Fprintf(&b, "<rect x=\"%.0f\" y=\"27\" width=\"10\" height=\"10\" fill=\"%s\"/>\n", x, barColours[i%len(barColours)])
		text(x+14, 36, "", t[0][c])
		x += 30 + 7*float64(len(t[0][c]))
	}
	for _, tick := range []float64{0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500} {
		if tick < low || tick > high {
			continue
		}
		colour := "#ddd"
		if tick == 1 {
			colour = "#888"
		}
		fmt.Fprintf(&b, "<path d=\"M%.1f %dV%d\" stroke=\"%s\"/>\n", at(tick), chartTop-6, height-6, colour)
		text(at(tick), chartTop-10, ` text-anchor="middle" fill="#666"`, fmt.Sprintf("%g×", tick))
	}
	y := float64(chartTop)
	for _, row := range t[1:] {
		text(labelWidth-12, y+float64(len(columns)*barHeight)/2+4, ` text-anchor="end"`, row[0])
		for i, c := range columns {
			v, ok := ratio(row[c])
			if ok {
				from, to := min(at(1), at(v)), max(at(1), at(v))
				fmt.Fprintf(&b, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n",
					from, y, max(to-from, 1), barHeight-2, barColours[i%len(barColours)])
			}
			text(max(at(1), at(max(v, low)))+4, y+barHeight-3, ` font-size="9" fill="#555"`, row[c])
			y += barHeight
		}
		y += rowGap
	}
	b.WriteString("</svg>\n")
	_, err := w.Write(b.Bytes())
	return err
}

var picture = regexp.MustCompile(`(?m)^!\[(.+)\]\(([a-z-]+\.svg)\)$`)

// charts returns the pictures of a page by name. A picture shows the table below it.
func charts(page string) (map[string][]byte, error) {
	all := map[string][]byte{}
	for _, at := range picture.FindAllStringSubmatchIndex(page, -1) {
		title, name := page[at[2]:at[3]], page[at[4]:at[5]]
		var b bytes.Buffer
		if err := readTable(page[at[1]:]).draw(&b, title); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all[name] = b.Bytes()
	}
	return all, nil
}

// chartTable draws the table on standard input.
func chartTable(args arguments) error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	return readTable(string(text)).draw(os.Stdout, args[0])
}

// chartPage draws the pictures of a page, beside it.
func chartPage(args arguments) error {
	page, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	all, err := charts(string(page))
	for name, svg := range all {
		err = errors.Join(err, os.WriteFile(filepath.Join(filepath.Dir(args[0]), name), svg, 0o644))
	}
	return err
}
