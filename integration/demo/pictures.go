// Command demo takes pictures of a console's pages with Chromium: demo DIRECTORY. Standard input has a link to the
// console.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/chromedp/chromedp"
)

func main() {
	if err := take(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func take(dir string) error {
	link, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return err
	}
	root, _, _ := strings.Cut(link, "/enter/")
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	// root has no sandbox
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-component-update", true), chromedp.Flag("no-proxy-server", true), chromedp.WindowSize(1280, 900))
	ctx, end := chromedp.NewExecAllocator(ctx, options...)
	defer end()
	ctx, end = chromedp.NewContext(ctx)
	defer func() { _ = chromedp.Cancel(ctx); end() }()
	if err := chromedp.Do(ctx, chromedp.Navigate(strings.TrimSpace(link))); err != nil {
		return err
	}
	if err := until(ctx, `document.querySelector("nav") && document.readyState === "complete"`); err != nil { // the link's page has none
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, path := range map[string]string{"now": "/", "inbox": "/inbox", "denials": "/denials", "log": "/log",
		"definitions": "/definitions", "charts": "/charts"} {
		if err := chromedp.Do(ctx, chromedp.Navigate(root+path)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// until waits until an expression of the page is true. A page that is being replaced has no values.
func until(ctx context.Context, expression string) error {
	for ctx.Err() == nil {
		if ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+expression+")")); err == nil && ok {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.New("the link does not open the console")
}
