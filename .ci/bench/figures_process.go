package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// measureProcess measures the program itself: its size, how long it takes to start, and its load while idle.
func (s *study) measureProcess(ctx context.Context) (err error) {
	info, err := os.Stat(s.mesh.program)
	if err != nil {
		return err
	}
	s.add(newFigure("binary", mib(info.Size()), "MiB", "as built; the released one is stripped").withMax(40))
	var took []float64
	for i := range s.Rounds {
		s.p.say("start %d of %d", i+1, s.Rounds)
		up, srv, err := s.timedStart(ctx, filepath.Join(s.dir, fmt.Sprintf("empty%d", i)), func(base *url.URL) bool {
			return isReady(ctx, base)
		})
		if err != nil {
			return err
		}
		if err := srv.stop(); err != nil {
			return err
		}
		took = append(took, float64(up.Microseconds())/1e3)
	}
	s.add(newFigure("serve to ready, empty data directory", median(took), "ms", "from exec to the first 200 of /readyz, median of %d", s.Rounds).withMax(300))
	srv, err := s.mesh.serve(ctx, filepath.Join(s.dir, "empty0"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	return s.measureIdle(ctx, srv)
}

func (s *study) measureIdle(ctx context.Context, srv *child) error {
	s.p.say("idle")
	if err := sleep(ctx, s.Idle/2); err != nil {
		return err
	}
	before, err := wakeUps(srv.PID)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	cpuBefore := srv.cpu()
	if err := sleep(ctx, s.Idle); err != nil {
		return err
	}
	after, err := wakeUps(srv.PID)
	if err != nil {
		return err
	}
	rss, err := resident(srv.PID)
	if err != nil {
		return err
	}
	s.add(
		newFigure("idle: resident", mib(rss), "MiB", "directory and node, nothing registered but itself").withMax(40),
		newFigure("idle: wake-ups", float64(after-before)/s.Idle.Seconds(), "/s", "voluntary context switches of all threads over %s; %v of CPU", s.Idle, srv.cpu()-cpuBefore).withMax(1),
	)
	return nil
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// startTimeout is how long a server may take until its first correct response.
const startTimeout = 5 * time.Minute

// timedStart starts a server on a free port, with more arguments, and measures the time until isUp returns true.
func (s *study) timedStart(ctx context.Context, data string, isUp func(base *url.URL) bool, more ...string) (time.Duration, *child, error) {
	address, err := freeAddress()
	if err != nil {
		return 0, nil, err
	}
	base := &url.URL{Scheme: "http", Host: address}
	waitCtx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	up := make(chan time.Duration, 1)
	begin := time.Now()
	go func() {
		defer close(up)
		tick := time.Tick(2 * time.Millisecond)
		for !isUp(base) {
			select {
			case <-waitCtx.Done():
				return
			case <-tick:
			}
		}
		up <- time.Since(begin)
	}()
	srv, err := s.mesh.serve(ctx, data, append([]string{"--listen", address}, more...)...)
	if err != nil {
		cancel()
		<-up
		return 0, nil, err
	}
	took, ok := <-up
	if !ok {
		return 0, nil, errors.Join(errors.New("the server did not give the expected response in time"), srv.stop())
	}
	return took, srv, nil
}

// freeAddress returns a loopback address with a port that was free a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func isReady(ctx context.Context, base *url.URL) bool {
	_, err := sendOnce(ctx, base, request(http.MethodGet, base, "/readyz", nil), http.StatusOK)
	return err == nil
}
