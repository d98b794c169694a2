package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

type curvesCmd struct {
	Sizes     []int         `default:"1000,10000,100000,1000000" help:"Numbers of cards and of conversations, rising."`
	Duration  time.Duration `short:"d" default:"2s" help:"Length of one measurement."`
	Data      string        `placeholder:"DIR" help:"Directory for the databases (default: a temporary one)."`
	Agentmesh string        `placeholder:"FILE" help:"The agentmesh program (default: in the directory of meshbench, or in PATH)."`
	Machine   string        `default:"two virtual cores" help:"The machine, in words, for the line below the pictures."`
	Out       string        `arg:"" help:"The picture, an SVG."`
}

// curve is how one cost grows with the number of entries.
type curve struct {
	title  string
	kind   int // index in kinds
	values []float64
}

var kinds = []struct{ name, color string }{{"cards", "#2a8c84"}, {"conversations", "#c0722a"}}

func (c *curvesCmd) Run(ctx context.Context, s streams) (err error) {
	program, err := findAgentmesh(c.Agentmesh)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(c.Data, "meshbench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	st := &study{p: s.p, mesh: agentmesh{program, dir}, dir: dir}
	var curves []curve
	for kind, measure := range []func(*curvesCmd, context.Context, *study, int) ([]cost, error){(*curvesCmd).cards, (*curvesCmd).conversations} {
		first := len(curves)
		for _, n := range c.Sizes {
			costs, err := measure(c, ctx, st, n)
			if err != nil {
				return err
			}
			for i, cost := range costs {
				if len(curves) == first+i {
					curves = append(curves, curve{title: cost.title, kind: kind})
				}
				curves[first+i].values = append(curves[first+i].values, cost.value)
				fmt.Fprintf(s.out, "%d %s\t%s\t%.4g\n", n, kinds[kind].name, cost.title, cost.value)
			}
		}
	}
	s.p.end()
	below := fmt.Sprintf("%s, %s, %s, %s/%s", time.Now().Format("2 January 2006"), c.Machine, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return os.WriteFile(c.Out, drawCurves(c.Sizes, curves, below), 0o644)
}

// cost is one measured cost. The title has its unit.
type cost struct {
	title string
	value float64
}

// cards measures a directory of n cards. It keeps the cards of smaller directories.
func (c *curvesCmd) cards(ctx context.Context, s *study, n int) ([]cost, error) {
	data := filepath.Join(s.dir, "cards")
	if err := fillBig(ctx, s.p, data, n); err != nil {
		return nil, err
	}
	list := func(base *url.URL) bool {
		_, err := sendOnce(ctx, base, request(http.MethodGet, base, "/v1/agents?limit=1", nil), http.StatusOK)
		return err == nil
	}
	return c.running(ctx, s, data, n, list, func(srv *child, b *bench) ([]cost, error) {
		page, err := c.cpu(ctx, srv, 1, b.eachOf("/agents", capabilityQueries()...))
		if err != nil {
			return nil, err
		}
		each, err := c.cpu(ctx, srv, writers, b.registrations(true))
		return []cost{{"cold page of a list, CPU in µs", page}, {written, each}}, err
	})
}

// written is the title of the cost that both kinds have.
const written = "registration; message and reply: CPU in µs"

// writers is the number of clients that register or send at the same time.
const writers = 64

// conversations measures a node with n conversations of one message and one reply.
func (c *curvesCmd) conversations(ctx context.Context, s *study, n int) ([]cost, error) {
	data := filepath.Join(s.dir, "conversations")
	if err := s.converse(ctx, data, n); err != nil {
		return nil, err
	}
	return c.running(ctx, s, data, n, func(base *url.URL) bool { return isReady(ctx, base) }, func(srv *child, b *bench) ([]cost, error) {
		b.talk = 1
		messages, err := b.prepareMessage(ctx)
		if err != nil {
			return nil, err
		}
		each, err := c.cpu(ctx, srv, writers, messages)
		return []cost{{written, each}}, err
	})
}

// converse sends messages to a node until it has n conversations, one for each message, as far as its file tells.
func (s *study) converse(ctx context.Context, data string, n int) (err error) {
	srv, err := s.mesh.serve(ctx, data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	b, err := srv.bench(writers)
	if err != nil {
		return err
	}
	b.talk = 1
	messages, err := b.prepareMessage(ctx)
	if err != nil {
		return err
	}
	send := messages.operation(b.endpoint, writers, nil)
	have := s.conversed
	s.conversed = n
	clients := make(chan int, writers)
	for w := range writers {
		clients <- w
	}
	return callEach(n-have-writers, func(i int) error {
		if i%1000 == 0 {
			s.p.say("begin %d of %d conversations", have+i, n)
		}
		w := <-clients
		defer func() { clients <- w }()
		return send(ctx, w)
	})
}

// running starts a server over data with n entries, and measures its start, its memory and what more measures.
func (c *curvesCmd) running(ctx context.Context, s *study, data string, n int, isUp func(*url.URL) bool, more func(*child, *bench) ([]cost, error)) (costs []cost, err error) {
	size, err := diskUse(data)
	if err != nil {
		return nil, err
	}
	s.p.say("start with %d", n)
	took, srv, err := s.timedStart(ctx, data, isUp)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	b, err := srv.bench(writers)
	if err != nil {
		return nil, err
	}
	costs, err = more(srv, b)
	if err != nil {
		return nil, err
	}
	memory, err := anonymous(srv.PID)
	return append(costs, cost{"start, in s", took.Seconds()}, cost{"anonymous memory after load, in MiB", mib(memory)}, cost{"disk for each, in KB", float64(size) / float64(n) / 1e3}), err
}

// cpu returns the processor time of the server for one request, in microseconds.
func (c *curvesCmd) cpu(ctx context.Context, srv *child, workers int, t traffic) (float64, error) {
	before := srv.cpu()
	result := drive(ctx, workers, c.Duration, t.operation(t.base, workers, nil))
	if result.Errors > 0 {
		return 0, errors.New(result.Fault)
	}
	return micros(srv.cpu()-before) / float64(result.Ops), nil
}

func diskUse(dir string) (total int64, err error) {
	return total, filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			total += info.Size()
		}
		return err
	})
}

// drawCurves draws one panel for each title, with logarithmic axes and a number at each point.
func drawCurves(sizes []int, curves []curve, below string) []byte {
	const width, height, pad, perRow = 300, 190, 40, 2
	var titles []string
	for _, c := range curves {
		if !strings.Contains(strings.Join(titles, "\n"), c.title) {
			titles = append(titles, c.title)
		}
	}
	rows := (len(titles) + perRow - 1) / perRow
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="11" fill="#777">`+"\n", perRow*width, rows*height+44)
	for i, title := range titles {
		left, top := float64(i%perRow*width+pad), float64(i/perRow*height+30)
		w, h := float64(width-2*pad), float64(height-80)
		low, high := math.Inf(1), 0.0
		for _, c := range curves {
			for _, v := range c.values {
				if c.title == title {
					low, high = min(low, v), max(high, v)
				}
			}
		}
		low, high = low/2, high*1.5
		x := func(k int) float64 {
			return left + w*math.Log(float64(sizes[k])/float64(sizes[0]))/max(math.Log(float64(sizes[len(sizes)-1])/float64(sizes[0])), 1e-9)
		}
		y := func(v float64) float64 { return top + h - h*math.Log(v/low)/math.Log(high/low) }
		fmt.Fprintf(&svg, `<text x="%.0f" y="%.0f" font-weight="600">%s</text><path d="M%.0f %.0fh%.0f" stroke="#999"/>`+"\n", left-pad/2, top-12, title, left-pad/2, top+h, w+pad)
		for k, n := range sizes {
			fmt.Fprintf(&svg, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, x(k), top+h+15, shortCount(n))
		}
		for _, c := range curves {
			if c.title != title {
				continue
			}
			var line strings.Builder
			for k, v := range c.values {
				fmt.Fprintf(&line, "%.1f,%.1f ", x(k), y(v))
				above := -7.0
				if slices.ContainsFunc(curves, func(other curve) bool { return other.title == title && other.values[k] > v }) {
					above = 16
				}
				fmt.Fprintf(&svg, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/><text x="%.1f" y="%.1f" text-anchor="middle" fill="%s">%.3g</text>`,
					x(k), y(v), kinds[c.kind].color, x(k), y(v)+above, kinds[c.kind].color, v)
			}
			fmt.Fprintf(&svg, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", line.String(), kinds[c.kind].color)
		}
	}
	at := rows*height + 20
	for i, k := range kinds {
		fmt.Fprintf(&svg, `<text x="%d" y="%d" fill="%s" font-weight="600">%s</text>`, 20+i*60, at, k.color, k.name)
	}
	fmt.Fprintf(&svg, `<text x="20" y="%d">%s</text></svg>`+"\n", at+16, below)
	return []byte(svg.String())
}

// shortCount writes 10000 as 10k and 1000000 as 1M.
func shortCount(n int) string {
	text := fmt.Sprint(n)
	if millions, ok := strings.CutSuffix(text, "000000"); ok {
		return millions + "M"
	}
	if thousands, ok := strings.CutSuffix(text, "000"); ok {
		return thousands + "k"
	}
	return text
}
