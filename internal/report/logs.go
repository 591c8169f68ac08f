package report

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"sync"

	"github.com/scopefs/scopefs/audit"
)

// logs returns the events of several logs that match a filter, by time. With follow it continues with new events of any of
// them until ctx ends. A directory without a log has no events; without any log it yields an error that wraps
// fs.ErrNotExist.
func logs(ctx context.Context, dirs []string, filter audit.Filter, follow bool) iter.Seq2[audit.Event, error] {
	if len(dirs) == 1 {
		return audit.Read(ctx, dirs[0], filter, follow)
	}
	return func(yield func(audit.Event, error) bool) {
		last := make([]audit.Event, len(dirs)) // the zero event: none
		none, more := byTime(ctx, dirs, filter, last, yield)
		switch {
		case !more:
		case none != nil && !follow:
			yield(audit.Event{}, none)
		case follow:
			next(ctx, dirs, filter, last, yield)
		}
	}
}

// byTime yields the events that are there, and sets the last of each log. none is the error of the last directory if none of
// them has a log. It reports whether the loop goes on.
func byTime(ctx context.Context, dirs []string, filter audit.Filter, last []audit.Event, yield func(audit.Event, error) bool) (none error, more bool) {
	type head struct {
		next func() (audit.Event, error, bool)
		e    audit.Event
		err  error
		ok   bool
	}
	heads := make([]head, len(dirs))
	logs := 0
	for i, dir := range dirs {
		next, stop := iter.Pull2(audit.Read(ctx, dir, filter, false))
		defer stop()
		h := head{next: next}
		if h.e, h.err, h.ok = next(); errors.Is(h.err, fs.ErrNotExist) {
			none, h.ok = h.err, false
		} else {
			logs++
		}
		heads[i] = h
	}
	if logs > 0 {
		none = nil
	}
	for {
		first := -1
		for i, h := range heads {
			if h.ok && (first < 0 || h.err != nil || heads[first].err == nil && h.e.Time.Before(heads[first].e.Time)) {
				first = i
			}
		}
		if first < 0 {
			return none, true
		}
		h := &heads[first]
		if h.err == nil {
			last[first] = h.e
		}
		if !yield(h.e, h.err) {
			return nil, false
		}
		h.e, h.err, h.ok = h.next()
	}
}

// next yields the events after the last ones, as they come.
func next(ctx context.Context, dirs []string, filter audit.Filter, last []audit.Event, yield func(audit.Event, error) bool) {
	ctx, stop := context.WithCancel(ctx)
	type item struct {
		e   audit.Event
		err error
	}
	items := make(chan item)
	var readers sync.WaitGroup
	for i, dir := range dirs {
		of := filter
		if last[i].Raw != nil {
			of.Since = last[i].Time
		}
		readers.Go(func() {
			for e, err := range audit.Read(ctx, dir, of, true) {
				if err == nil && e.Seq <= last[i].Seq {
					continue
				}
				select {
				case items <- item{e, err}:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	defer readers.Wait()
	defer stop()
	for {
		select {
		case it := <-items:
			if !yield(it.e, it.err) {
				return
			}
		case <-ctx.Done():
			yield(audit.Event{}, ctx.Err())
			return
		}
	}
}
