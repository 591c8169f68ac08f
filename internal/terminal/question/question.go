// Package question asks the user of a command on the terminal, a line each.
package question

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/terminal"
	"github.com/scopefs/scopefs/tools/questions"
)

// Asker returns a function that asks the user on the terminal. It is nil if standard
// input or standard error is no terminal, and in the background, where nobody answers.
func Asker(stdin io.Reader, stderr io.Writer) func(context.Context, questions.Question) (questions.Answer, error) {
	in := terminal.File(stdin)
	if in == nil || !terminal.Is(stderr) || !terminal.Foreground(int(in.Fd())) {
		return nil
	}
	input := terminal.Input(in)
	lines := bufio.NewReader(input)
	return func(ctx context.Context, q questions.Question) (questions.Answer, error) {
		terminal.Flush(int(in.Fd())) // what was typed before the question is no answer to it
		lines.Reset(input)
		answers := make(chan questions.Answer, 1)
		go func() { answers <- askLine(lines, stderr, q) }() // a read of a terminal cannot be cancelled
		select {
		case answer := <-answers:
			return answer, nil
		case <-ctx.Done():
			return questions.Answer{}, context.Cause(ctx)
		}
	}
}

// askLine asks until the answer is one of the options, the beginning of one alone such as y, or its number. An empty line
// or the end of input declines.
func askLine(lines *bufio.Reader, stderr io.Writer, q questions.Question) questions.Answer {
	fmt.Fprintln(stderr, printable.Lines(q.Text))
	for i, option := range q.Options {
		fmt.Fprintf(stderr, "  %d. %s\n", i+1, printable.Text(option))
	}
	for {
		fmt.Fprint(stderr, "> ")
		line, err := lines.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		if err != nil && line == "" {
			fmt.Fprintln(stderr)
		}
		n, _ := strconv.Atoi(line)
		switch {
		case line == "":
			return questions.Answer{Declined: true}
		case len(q.Options) == 0 || slices.Contains(q.Options, line):
			return questions.Answer{Text: line}
		case n >= 1 && n <= len(q.Options):
			return questions.Answer{Text: q.Options[n-1]}
		case err != nil:
			return questions.Answer{Declined: true}
		}
		if option := beginning(q.Options, line); option != "" {
			return questions.Answer{Text: option}
		}
		fmt.Fprintf(stderr, "choose 1 to %d, or type one of the options\n", len(q.Options))
	}
}

// beginning returns the only option that begins with a text, in any case of letters; "": there is none, or several.
func beginning(options []string, text string) (found string) {
	for _, option := range options {
		if len(text) <= len(option) && strings.EqualFold(option[:len(text)], text) {
			if found != "" {
				return ""
			}
			found = option
		}
	}
	return found
}
