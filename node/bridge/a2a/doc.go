// Package a2a makes the node an agent of A2A 1.0, and lets its owner write to other A2A agents.
//
// Callers have bearer tokens, which make them principals under the owner's access rules, approvals and limits like the
// peers of every other network. A message that expects an answer is a task, and a context is a conversation of the
// node. The package stores the states of each task; the transcript of the conversation has the messages.
//
// Start with [New]. The codec is in package message.
package a2a
