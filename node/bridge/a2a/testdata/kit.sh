#!/bin/sh
# Answers as the public test kit of A2A expects: the id that the client gave its message names the behavior.
call=$(cat)
id=${call#*\"bridge\":}
id=${id#*\"message_id\":\"}
id=${id%%\"*}
part() { printf '{"task":{"state":"completed"},"artifacts":[{"id":"a","parts":[%s]}]}' "$1"; }
case $id in
tck-delayed-complete*) sleep 1; part '{"text":"Done after delay"}' ;;
tck-input-required*) printf '{"task":{"state":"input_required","text":"more, please"}}' ;;
tck-reject-task*) printf '{"task":{"state":"rejected","text":"rejected"}}' ;;
tck-artifact-file-url*) part '{"url":"https://example.com/output.txt","filename":"output.txt","media_type":"text/plain"}' ;;
tck-artifact-file*) part '{"raw":"aGk=","filename":"output.txt","media_type":"text/plain"}' ;;
tck-artifact-data*) part '{"data":{"key":"value","count":42}}' ;;
*) part '{"text":"Hello from TCK"}' ;;
esac
