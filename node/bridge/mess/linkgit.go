package mess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/subprocess"
)

// run runs plain git in the directory. Nothing a stranger wrote is in its arguments.
func (r *dirRemote) run(ctx context.Context, args ...string) error {
	_, err := r.output(ctx, args...)
	return err
}

// output is run for what git says.
func (r *dirRemote) output(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	env := []string{"GIT_TERMINAL_PROMPT=0", "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "SSH_AUTH_SOCK=" + os.Getenv("SSH_AUTH_SOCK")}
	res, err := subprocess.Command{Argv: append([]string{"git", "-c", "core.hooksPath=/dev/null"}, args...), Dir: r.dir, Env: env, MaxOutput: 1 << 20}.Run(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(res.Tail))
	}
	return res.Output, nil
}

// pull brings in what others pushed. What a crash kept us from pushing goes on top of it. Where nobody has pushed anything
// yet, there is nothing to bring in.
func (r *dirRemote) pull(ctx context.Context) error {
	if !r.git {
		return nil
	}
	err := r.run(ctx, "pull", "-q", "--ff-only")
	if err != nil && (r.nothingThere(ctx) || r.rebase(ctx) == nil) {
		return nil
	}
	return err
}

// nothingThere says whether the repository that we push to is empty.
func (r *dirRemote) nothingThere(ctx context.Context) bool {
	heads, err := r.output(ctx, "ls-remote", "--heads")
	return err == nil && len(heads) == 0
}

// push pushes. The first push of a clone of an empty repository makes the branch that is followed from then on.
func (r *dirRemote) push(ctx context.Context) error {
	if r.run(ctx, "rev-parse", "-q", "--verify", "@{u}") != nil {
		return r.run(ctx, "push", "-q", "-u", "origin", "HEAD")
	}
	return r.run(ctx, "push", "-q")
}

// rebase puts our commits on top of what others pushed, or leaves everything as it was.
func (r *dirRemote) rebase(ctx context.Context) error {
	err := r.run(ctx, "-c", "user.name=agentmesh", "-c", "user.email=agentmesh@localhost", "pull", "-q", "--rebase")
	if err != nil {
		_ = r.run(ctx, "rebase", "--abort") // where there is none, nothing is to be undone
	}
	return err
}

// publish commits and pushes what was written. A push that came second is repeated once on top of what came first. What
// cannot be pushed is undone: it is said again as a whole, to the thread as it stands then.
func (r *dirRemote) publish(ctx context.Context, ref string) error {
	if !r.git {
		return nil
	}
	if err := r.run(ctx, "add", "-A", "exchange"); err != nil {
		return again(err)
	}
	changed := r.run(ctx, "diff", "--cached", "--quiet") != nil
	if changed {
		if err := r.run(ctx, "-c", "user.name=agentmesh", "-c", "user.email=agentmesh@localhost", "commit", "-q", "-m", "messe-af: "+ref); err != nil {
			return again(err)
		}
	}
	err := r.push(ctx)
	if err != nil {
		if because := r.rebase(ctx); because != nil {
			err = errors.Join(err, because)
		} else {
			err = r.push(ctx)
		}
	}
	if err != nil && changed {
		err = errors.Join(err, r.undo(ctx))
	}
	return again(err)
}

// undo takes the newest commit back. Of the first commit of all the files stay.
func (r *dirRemote) undo(ctx context.Context) error {
	if r.run(ctx, "rev-parse", "-q", "--verify", "HEAD~1") == nil {
		return r.run(ctx, "reset", "-q", "--keep", "HEAD~1")
	}
	if err := r.run(ctx, "update-ref", "-d", "HEAD"); err != nil {
		return err
	}
	return r.run(ctx, "reset", "-q")
}
