// Package hook is what runs behind a node: a program, a webhook, an OpenClaw gateway, the owner's calendars.
//
// A [Handler] gets one message as a [Call] and returns one [Answer]. Which handler gets which message, when it runs
// and what becomes of its answer is decided by package node.
package hook
