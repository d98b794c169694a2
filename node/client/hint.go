package client

import "errors"

// HintOf returns what the owner can do about err, or "" if no error in its chain has a hint.
func HintOf(err error) string {
	type hinter interface {
		error
		Hint() string
	}
	if e, ok := errors.AsType[hinter](err); ok {
		return e.Hint()
	}
	return ""
}
